#pragma once
#include "core/autograd.h"
#include "core/cuda/module.h"
#include "core/profile.h"

namespace nemocube {

/// c = op(a) op(b), or c += op(a) op(b);   op(m) = m^T where its `transpose` is set, else m
///
/// shapes     each tensor is viewed as rows x cols, its leading dimensions flattened: op(a) [M, K],
///            op(b) [K, N], c [M, N]; sizes may be 0 (K = 0: c is set to zero, or left as it is)
/// layout     last dimension contiguous, row stride free
/// dtypes     a, b alike: f32, f64 or bf16; c the same, or f32 for bf16 operands
/// arithmetic f32 sums for f32 and bf16 (oneDNN; on CUDA cuBLAS, see allow_tf32), f64 sums in the order of k
///            for f64; c is rounded once, the old value of c included.
///            On CUDA cuBLAS may round the product to bf16 first, and
///            the sum with the old value again. Without bf16
///            instructions the operands are converted to f32.
/// aliasing   c may not overlap a or b
/// errors     Error for shapes or dtypes that do not fit
/// threads    may be called from many threads; inside a parallel region it runs on the calling thread
/// repeat     same build, machine, shapes, strides and thread count: same bits; on CUDA same build, cuBLAS,
///            kind of device, shapes, strides and alignment
void matmul(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b);

namespace cuda {
/// Whether cuBLAS may round the operands of f32 products to TF32, which has 10 bits of mantissa for f32's 23,
/// and use tensor cores. Off until the first call; for all products queued after the call.
inline const Function<void(bool allowed)> allow_tf32("matmul/allow_tf32");

/// The most workspace, in bytes, that cuBLAS gets for a product on a CUDA device, and the most that one
/// product has had so far. Each product has its own workspace, which then goes back to the pool.
constexpr std::int64_t most_product_workspace = std::int64_t{32} << 20;
inline const Function<std::int64_t()> largest_product_workspace("matmul/largest_product_workspace");
}  // namespace cuda

/// matmul without its timer, for an operation that times a group of products in matmul_zone() itself.
void matmul_untimed(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b);
/// The zone "matmul" of the calling thread: wall time of all products.
Zone& matmul_zone();

/// Floating-point operations of all products since the last reset, 2 M N K each.
double matmul_flops();
void reset_matmul_flops();
/// Counts the operations of a product [m, k] [k, n] that another kernel forms.
void count_product(std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace nemocube

#pragma once
#include "core/kernel.h"

/// The kernel behind ops/matmul/matmul.h: arguments checked by the caller, no size is 0.
namespace nemocube {

namespace cpu {
void matmul(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b);
}
inline const Kernel<cpu::matmul> matmul_kernel("matmul/product");

namespace cuda {
/// The product on CUDA where cuBLAS has none for the sizes, strides or alignment: slower, and for all of them.
inline const Function<void(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b,
                           bool transpose_b)>
    tiled_product("matmul/tiled_product");
/// Behind matmul_with_bias(). False, and nothing done, where cuBLAS has no such product.
inline const Function<bool(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias)>
    biased_product("matmul/biased_product");
/// Behind matmul_mixed().
inline const Function<void(const Output& c, const Tensor& a, const Tensor& b)> mixed_product(
    "matmul/mixed_product");
}  // namespace cuda

/// c = a b, or c + a b with Into::add, on CUDA. The product is formed by multiply-adds of f32, as with a copy of b in f32 but
/// for the order of the sums. Into::add adds the rounded product and rounds again, as an addition of its own does.
///
/// shapes     a [m, k], b [k, n] -> c [m, n], which the caller has checked; an empty c is left alone
/// dtypes     a f32, b bf16, c f32 or bf16
/// layout     row strides free
/// profile    counted and timed as a product of matmul()
void matmul_mixed(const Output& c, const Tensor& a, const Tensor& b);

/// c = a b^T + bias in the epilogue of a product of cuBLAS, on CUDA. False, and nothing done, on other devices and where
/// cuBLAS has no such product.
///
/// shapes     a [m, k], b [n, k], bias [n] -> c [m, n], which the caller has checked
/// dtypes     all alike: f32 or bf16; c is rounded once, the bias included
/// profile    counted and timed as a product of matmul()
bool matmul_with_bias(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias);

}  // namespace nemocube

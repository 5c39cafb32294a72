#pragma once
#include "core/kernel.h"

/// The kernel behind ops/matmul/matmul.h: arguments checked by the caller, no size is 0.
namespace nemocube {

namespace cpu {
void matmul(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b);
}
inline const Kernel<cpu::matmul> matmul_kernel("matmul/product");

namespace cuda {
/// The product on CUDA where cuBLAS has none for the sizes, strides or alignment: slower, and for all of
/// them.
inline const Function<void(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b,
                           bool transpose_b)>
    tiled_product("matmul/tiled_product");
/// Behind matmul_with_bias(). False, and nothing done, where cuBLAS has no such product.
inline const Function<bool(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias)>
    biased_product("matmul/biased_product");
/// Behind matmul_mixed(), matmul_split() and matmul_terms().
inline const Function<void(const Output& c, const Tensor& a, const Tensor& b)> mixed_product(
    "matmul/mixed_product");
inline const Function<Tensor(const Output& c, const Tensor& a, const Tensor& b)> split_product(
    "matmul/split_product");
inline const Function<void(const Output& c, const Tensor& terms, const Tensor& b)> terms_product(
    "matmul/terms_product");
}  // namespace cuda

/// c = a b^T, or c + a b^T with Into::add, on CUDA. Each element of b is the sum of three bf16 terms, so that
/// products of bf16 with sums of f32 give what a copy of a in f32 gives but for the order of the sums;
/// infinities among b make NaNs. The products of the three terms are added in f32, the smallest first.
///
/// shapes     a [m, k], b [n, k] -> c [m, n], which the caller has checked; an empty c is left alone
/// dtypes     a bf16, b and c f32
/// layout     row strides free
/// profile    counted and timed as a product of matmul()
void matmul_mixed(const Output& c, const Tensor& a, const Tensor& b);

/// c = a b, or c + a b with Into::add, on CUDA, for two f32 factors: each is the sum of three bf16 terms, and
/// the six products of terms that are not below the digits of f32 are formed as one of bf16 with sums of f32;
/// infinities among a or b make NaNs. Rounding as in matmul(). Returns the terms [m, 3 k] bf16 of a for
/// matmul_terms(); undefined where c is empty.
///
/// shapes     a [m, k], b [k, n] -> c [m, n], which the caller has checked; an empty c is left alone
/// dtypes     a and b f32, c f32 or bf16
/// layout     row strides free
/// profile    counted and timed as a product of matmul()
Tensor matmul_split(const Output& c, const Tensor& a, const Tensor& b);

/// c = a^T b, or c + a^T b with Into::add, on CUDA, for the terms that matmul_split() has made of a. The
/// products of the three terms are added in f32, the smallest first, and rounded once.
///
/// shapes     terms [m, 3 k], b [m, n] -> c [k, n], which the caller has checked; an empty c is left alone
/// dtypes     terms and b bf16, c f32 or bf16
/// layout     row strides free
/// profile    counted and timed as a product of matmul()
void matmul_terms(const Output& c, const Tensor& terms, const Tensor& b);

/// c = a b^T + bias in the epilogue of a product of cuBLAS, on CUDA. False, and nothing done, on other
/// devices and where cuBLAS has no such product.
///
/// shapes     a [m, k], b [n, k], bias [n] -> c [m, n], which the caller has checked
/// dtypes     all alike: f32 or bf16; c is rounded once, the bias included
/// profile    counted and timed as a product of matmul()
bool matmul_with_bias(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias);

}  // namespace nemocube

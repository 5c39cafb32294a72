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
/// Behind matmul_mixed().
inline const Function<void(const Output& c, const Tensor& a, const Tensor& b)> mixed_product(
    "matmul/mixed_product");
}  // namespace cuda

/// On CUDA, c = a b of a in f32 and b in bf16, with multiply-adds of f32: what a copy of b in f32 would give, but for the
/// order of the sums. c is f32 or bf16; Into::add adds the rounded product, as by an addition of its own. A product as those of
/// matmul().
void matmul_mixed(const Output& c, const Tensor& a, const Tensor& b);

}  // namespace nemocube

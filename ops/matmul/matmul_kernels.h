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
}  // namespace cuda

}  // namespace nemocube

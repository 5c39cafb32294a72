#pragma once
#include "core/cuda/module.h"
#include "core/tensor.h"

/// Kernels behind ops/relu2/relu2.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be x.
void relu2_forward(const Tensor& y, const Tensor& x);
/// dx may be dy.
void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& y);
}  // namespace cpu

namespace cuda {
inline const Kernel<decltype(cpu::relu2_forward)> relu2_forward("relu2/forward");
inline const Kernel<decltype(cpu::relu2_backward)> relu2_backward("relu2/backward");
}  // namespace cuda

/// The same on the device of the tensors.
void relu2_forward(const Tensor& y, const Tensor& x);
void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& y);

}  // namespace nemocube

#pragma once
#include "core/kernel.h"

/// Kernels behind ops/relu2/relu2.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be x.
void relu2_forward(const Tensor& y, const Tensor& x);
/// dx may be dy.
void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& y);
}  // namespace cpu

inline const Kernel<cpu::relu2_forward> relu2_forward("relu2/forward");
inline const Kernel<cpu::relu2_backward> relu2_backward("relu2/backward");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"

/// Kernels behind ops/gelu/gelu.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be x.
void gelu_forward(const Tensor& y, const Tensor& x);
/// dx may be dy or x.
void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x);
}  // namespace cpu

inline const Kernel<cpu::gelu_forward> gelu_forward("gelu/forward");
inline const Kernel<cpu::gelu_backward> gelu_backward("gelu/backward");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"
#include "ops/gated_activation/gated_activation.h"

/// Kernels behind ops/gated_activation/gated_activation.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be gate or up.
void gated_activation_forward(const Tensor& y, const Tensor& gate, const Tensor& up, GateActivation phi);
/// dgate or dup may be undefined: it is not wanted. Each of them may be any one of dy, gate and up.
void gated_activation_backward(const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                               const Tensor& up, GateActivation phi);
}  // namespace cpu

inline const Kernel<cpu::gated_activation_forward> gated_activation_forward("gated_activation/forward");
inline const Kernel<cpu::gated_activation_backward> gated_activation_backward("gated_activation/backward");

}  // namespace nemocube

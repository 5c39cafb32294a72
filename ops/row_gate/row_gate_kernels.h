#pragma once
#include "core/kernel.h"

/// Kernels behind ops/row_gate/row_gate.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be x. With dy as x, y is dx.
void row_gate_forward(const Tensor& y, const Tensor& x, const Tensor& gate);
/// dx may be undefined: it is not wanted. It may be dy or x; dgate may be no other operand.
void row_gate_backward(const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate);
}  // namespace cpu

inline const Kernel<cpu::row_gate_forward> row_gate_forward("row_gate/forward");
inline const Kernel<cpu::row_gate_backward> row_gate_backward("row_gate/backward");

}  // namespace nemocube

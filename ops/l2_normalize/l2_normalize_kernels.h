#pragma once
#include "core/kernel.h"

/// Kernels behind ops/l2_normalize/l2_normalize.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y may be x.
void l2_normalize_forward(const Tensor& y, const Tensor& x, double eps);
/// dx.to: in the dtype of x or its accumulation dtype; no other operand.
void l2_normalize_backward(const Output& dx, const Tensor& dy, const Tensor& x, double eps);
}  // namespace cpu

inline const Kernel<cpu::l2_normalize_forward> l2_normalize_forward("l2_normalize/forward");
inline const Kernel<cpu::l2_normalize_backward> l2_normalize_backward("l2_normalize/backward");

}  // namespace nemocube

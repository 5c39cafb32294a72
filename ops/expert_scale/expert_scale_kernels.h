#pragma once
#include "core/kernel.h"

/// Kernels behind ops/expert_scale/expert_scale.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y = w s[e]. y may be w. With dy as w, y is dw.
void expert_scale(const Tensor& y, const Tensor& w, const Tensor& experts, const Tensor& scale);
/// partial [segments of T, E], of the dtype of w: sums of dy w for each expert over the rows of a segment, in
/// the order of tokens and of their choices.
void expert_scale_sums(const Tensor& partial, const Tensor& dy, const Tensor& w, const Tensor& experts);
}  // namespace cpu

inline const Kernel<cpu::expert_scale> expert_scale_kernel("expert_scale/scale");
inline const Kernel<cpu::expert_scale_sums> expert_scale_sums("expert_scale/sums");

}  // namespace nemocube

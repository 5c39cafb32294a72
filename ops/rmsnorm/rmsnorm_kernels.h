#pragma once
#include "core/kernel.h"

/// Kernels behind ops/rmsnorm/rmsnorm.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// inv_rms [rows], f32 (f64 with f64). With `residual`, writes sum = x + residual and norms the sum. `sum`
/// and `residual` are both undefined otherwise.
void rmsnorm_forward(const Tensor& y, const Tensor& inv_rms, const Tensor& sum, const Tensor& x,
                     const Tensor& residual, const Tensor& weight, double eps, double offset);
/// dx = (norm backward of dy) + extra. `extra` may be undefined. dx and dw.to may be undefined: they are then
/// not computed. dx may be dy or extra.
void rmsnorm_backward(const Tensor& dx, const Output& dw, const Tensor& dy, const Tensor& extra,
                      const Tensor& x, const Tensor& weight, const Tensor& inv_rms, double offset);
}  // namespace cpu

inline const Kernel<cpu::rmsnorm_forward> rmsnorm_forward("rmsnorm/forward");
inline const Kernel<cpu::rmsnorm_backward> rmsnorm_backward("rmsnorm/backward");

}  // namespace nemocube

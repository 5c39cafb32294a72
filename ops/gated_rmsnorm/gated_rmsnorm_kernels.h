#pragma once
#include "core/tensor.h"

/// Kernels behind ops/gated_rmsnorm/gated_rmsnorm.h: arguments checked by the caller. `inv_rms` is [T,
/// groups] in the accumulation dtype.
namespace nemocube::cpu {

void gated_rmsnorm_forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z,
                           const Tensor& weight, double eps);

/// dy and dz like y; dweight [segments, d] holds one partial sum for each segment of ops/reduce.h. Each may
/// be undefined. dy may be dout.
void gated_rmsnorm_backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout,
                            const Tensor& y, const Tensor& z, const Tensor& weight, const Tensor& inv_rms);

}  // namespace nemocube::cpu

#pragma once
#include "core/tensor.h"

/// Kernels behind ops/relu2/relu2.h: arguments checked by the caller.
namespace nemocube::cpu {

/// y may be x.
void relu2_forward(const Tensor& y, const Tensor& x);
/// dx may be dy.
void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& y);

}  // namespace nemocube::cpu

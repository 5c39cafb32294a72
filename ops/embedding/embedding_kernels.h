#pragma once
#include "core/autograd.h"

/// Kernels behind ops/embedding/embedding.h: arguments checked by the caller.
namespace nemocube::cpu {

/// y[t, :] = weight[ids[t], :]; y is contiguous.
void embedding_forward(const Tensor& y, const Tensor& ids, const Tensor& weight);

/// dweight[ids[t], :] += dy[t, :] in ascending t, after zeroing with Into::set. dweight in the accumulation
/// dtype of dy.
void embedding_backward(const Output& dweight, const Tensor& ids, const Tensor& dy);

}  // namespace nemocube::cpu

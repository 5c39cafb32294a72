#pragma once
#include <span>

#include "core/tensor.h"

/// Kernels behind ops/global_norm/global_norm.h: arguments checked by the caller.
namespace nemocube::cpu {

/// Sets `sum` to the square sum of contiguous tensors, none empty. Segments of fixed length are added in order.
void sum_of_squares(const Tensor& sum, std::span<const Tensor> tensors);
void add_square_sums(const Tensor& sum, const Tensor& parts);
void clip_decision(const Tensor& decision, const Tensor& square_sum, const Tensor& loss_sum, double max_norm);

}  // namespace nemocube::cpu

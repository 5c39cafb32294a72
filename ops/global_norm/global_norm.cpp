#include "ops/global_norm/global_norm.h"

#include <vector>

#include "core/profile.h"
#include "ops/global_norm/global_norm_kernels.h"

namespace nemocube {

Tensor sum_of_squares(std::span<const Tensor> tensors, Device device) {
  static Zone zone("global_norm");
  const ZoneTimer timer(zone);
  std::vector<Tensor> whole;
  for (const Tensor& t : tensors) {
    require(t.defined(), "global_norm: tensor ", &t - tensors.data(), " is undefined");
    require(is_float(t.dtype()), "global_norm: want f32, f64 or bf16, got ", t.dtype());
    if (t.numel() > 0) whole.push_back(t.as_contiguous());
  }
  const Tensor sum = Tensor::empty({3}, DType::f64, device);
  sum_of_squares_kernel(sum, whole);
  return sum;
}

Tensor add_square_sums(const Tensor& parts) {
  check_dtype("add_square_sums: parts", parts, DType::f64);
  check_shape("add_square_sums: parts", parts, {parts.rows(), 3});
  const Tensor sum = Tensor::empty({3}, DType::f64, parts.device());
  add_square_sums_kernel(sum, parts);
  return sum;
}

Tensor clip_decision(const Tensor& square_sum, const Tensor& loss_sum, double max_norm) {
  require(max_norm > 0, "clip_decision: want a positive maximum norm, got ", max_norm);
  check_dtype("clip_decision: square_sum", square_sum, DType::f64);
  check_shape("clip_decision: square_sum", square_sum, {3});
  check_dtype("clip_decision: loss_sum", loss_sum, DType::f64);
  check_shape("clip_decision: loss_sum", loss_sum, {1});
  const Tensor decision = Tensor::empty({3}, DType::f64, square_sum.device());
  clip_decision_kernel(decision, square_sum, loss_sum, max_norm);
  return decision;
}

}  // namespace nemocube

#include "ops/global_norm/global_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/profile.h"
#include "ops/global_norm/global_norm_kernels.h"

namespace nemocube {

double SquareSum::norm() const { return std::ldexp(std::sqrt(sum), exponent); }

SquareSum operator+(const SquareSum& a, const SquareSum& b) {
  const bool finite = a.finite && b.finite;
  if (a.sum == 0) return {b.sum, b.exponent, finite};
  if (b.sum == 0) return {a.sum, a.exponent, finite};
  const SquareSum &large = a.exponent >= b.exponent ? a : b, &small = a.exponent >= b.exponent ? b : a;
  return {large.sum + std::ldexp(small.sum, 2 * (small.exponent - large.exponent)), large.exponent, finite};
}

SquareSum sum_of_squares(std::span<const Tensor> tensors) {
  static Zone zone("global_norm");
  const ZoneTimer timer(zone);
  std::vector<Tensor> whole;
  bool any_f64 = false;
  for (const Tensor& t : tensors) {
    require(t.defined(), "global_norm: tensor ", &t - tensors.data(), " is undefined");
    require(is_float(t.dtype()), "global_norm: want f32, f64 or bf16, got ", t.dtype());
    any_f64 = any_f64 || t.dtype() == DType::f64;
    if (t.numel() > 0) whole.push_back(t.as_contiguous());
  }
  const double sum = cpu::sum_squares(whole, 1);
  const bool comfortable = sum > 0x1p-900 && sum < 0x1p1000;
  if (comfortable || !any_f64) return {sum, 0, std::isfinite(sum)};
  const double most = cpu::largest_magnitude(whole);
  if (!std::isfinite(most)) return {sum, 0, false};
  if (most == 0) return {};
  int exponent = 0;
  std::frexp(most, &exponent);
  exponent = std::max(exponent, -1000);  // keeps the scale itself finite
  return {cpu::sum_squares(whole, std::ldexp(1.0, -exponent)), exponent, true};
}

double clip_coefficient(double norm, double max_norm) {
  require(max_norm > 0, "clip_coefficient: want a positive maximum norm, got ", max_norm);
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1 ? coefficient : 1;
}

}  // namespace nemocube

#pragma once
#include <cmath>

#include "core/cuda/host_and_device.h"

/// The arithmetic of square sums, for the kernels of the CPU and of CUDA.
namespace nemocube {

/// sum 4^exponent; in a tensor as [3] f64.
struct SquareSum {
  double sum = 0;
  int exponent = 0;
  bool finite = true;
};

NEMOCUBE_HOST_AND_DEVICE inline SquareSum operator+(const SquareSum& a, const SquareSum& b) {
  const bool finite = a.finite && b.finite;
  if (a.sum == 0) return {b.sum, b.exponent, finite};
  if (b.sum == 0) return {a.sum, a.exponent, finite};
  const SquareSum &large = a.exponent >= b.exponent ? a : b, &small = a.exponent >= b.exponent ? b : a;
  return {large.sum + std::ldexp(small.sum, 2 * (small.exponent - large.exponent)), large.exponent, finite};
}

NEMOCUBE_HOST_AND_DEVICE inline SquareSum read_square_sum(const double* values) {
  return {values[0], static_cast<int>(values[1]), values[2] != 0};
}

NEMOCUBE_HOST_AND_DEVICE inline void write_square_sum(double* values, const SquareSum& s) {
  values[0] = s.sum;
  values[1] = s.exponent;
  values[2] = s.finite ? 1 : 0;
}

/// Writes the [3] of clip_decision().
NEMOCUBE_HOST_AND_DEVICE inline void write_decision(double* values, const SquareSum& s, double loss_sum,
                                                    double max_norm) {
  const double norm = std::ldexp(std::sqrt(s.sum), s.exponent), coefficient = max_norm / (norm + 1e-6);
  values[0] = norm;
  values[1] = coefficient < 1 ? coefficient : 1;
  values[2] = s.finite && std::isfinite(loss_sum) ? 1 : 0;
}

}  // namespace nemocube

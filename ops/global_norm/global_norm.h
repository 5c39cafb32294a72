#pragma once
#include <span>

#include "core/tensor.h"

namespace nemocube {

/// A sum of squares: `sum` 4^exponent. The exponent is 0 unless f64 values would overflow or underflow.
struct SquareSum {
  double sum = 0;
  int exponent = 0;
  bool finite = true;   ///< false when any element is infinite or NaN; the sum is then infinite or NaN
  double norm() const;  ///< the square root

  /// Of the elements of both, as those of two devices.
  friend SquareSum operator+(const SquareSum& a, const SquareSum& b);
};

/// The sum of the squares of all elements of all tensors.
///
/// dtypes     f32, f64 or bf16, may differ
/// layout     any; a strided tensor is copied first
/// arithmetic squares and sums in f64, where no f32 or bf16 values overflow or underflow. When f64 tensors
/// are
///            present and the plain sum overflows or underflows, all are summed again, scaled by a power of
///            two.
/// errors     Error for an undefined tensor or an integer dtype
/// repeat     segments of fixed length, added in order: same bits for any number of threads
SquareSum sum_of_squares(std::span<const Tensor> tensors);

/// The factor that brings a gradient of this norm down to max_norm: max_norm / (norm + 1e-6) when that is
/// below 1, else 1. An infinite norm gives 0, a NaN gives 1. Error unless max_norm > 0.
double clip_coefficient(double norm, double max_norm);

}  // namespace nemocube

#pragma once
#include <span>

#include "core/tensor.h"

/// The norm of a gradient, and the decision to clip and to step. Results stay on the operands' device.
namespace nemocube {

/// The sum of the squares of all elements of all tensors, as a square sum [3] f64 on `device`:
///   {sum, exponent, finite}   the sum is sum 4^exponent; the exponent is 0 unless f64 values would overflow
///                             or underflow; finite is 0 when any element is infinite or NaN, and the sum
///                             then is infinite or NaN, else 1
///
/// dtypes     f32, bf16 or f64 (CPU), may differ
/// layout     any; a strided tensor is copied first
/// arithmetic squares and sums in f64, where no f32 or bf16 values overflow or underflow. When f64 tensors
/// are
///            present and the plain sum overflows or underflows, all are summed again, scaled by a power of
///            two.
/// errors     Error for an undefined tensor, an integer dtype, or f64 on CUDA
/// repeat     segments of fixed length, added in a fixed order: same bits for any number of threads
Tensor sum_of_squares(std::span<const Tensor> tensors, Device device);

/// The square sum of several parts, such as devices: their square sums [n, 3] f64, added in
/// order. Error for another shape or dtype.
Tensor add_square_sums(const Tensor& parts);

/// The decision of a step about its gradient, [3] f64: {norm, clip coefficient, go}.
///
///   norm = sqrt(sum) 2^exponent    clip = max_norm / (norm + 1e-6) when that is below 1, else 1
///   go   = 1 when the square sum and loss_sum are finite, else 0
///
/// An infinite norm gives the coefficient 0, a NaN gives 1. square_sum [3] f64, loss_sum [1] f64; Error for
/// other shapes and dtypes, and unless max_norm > 0.
Tensor clip_decision(const Tensor& square_sum, const Tensor& loss_sum, double max_norm);

}  // namespace nemocube

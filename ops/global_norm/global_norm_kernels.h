#pragma once
#include <span>

#include "core/tensor.h"

/// Kernels behind ops/global_norm/global_norm.h: contiguous tensors of floating dtypes, none empty.
namespace nemocube::cpu {

/// Sum of (scale x)^2 over all elements x of all tensors, in f64. Segments of fixed length are added in
/// order.
double sum_squares(std::span<const Tensor> tensors, double scale);

/// The largest |x|; a NaN or infinity when there is one.
double largest_magnitude(std::span<const Tensor> tensors);

}  // namespace nemocube::cpu

#pragma once
#include <span>

#include "core/kernel.h"

/// Kernels behind ops/global_norm/global_norm.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {

/// Sets `sum` to the square sum of contiguous tensors, none empty. Segments of fixed length are added in
/// order; on CUDA as the sums of 256 interleaved sets of segments.
void sum_of_squares(const Tensor& sum, std::span<const Tensor> tensors);
void add_square_sums(const Tensor& sum, const Tensor& parts);
void clip_decision(const Tensor& decision, const Tensor& square_sum, const Tensor& loss_sum, double max_norm);

}  // namespace cpu

inline const Kernel<cpu::sum_of_squares> sum_of_squares_kernel("global_norm/sum_of_squares");
inline const Kernel<cpu::add_square_sums> add_square_sums_kernel("global_norm/add_square_sums");
inline const Kernel<cpu::clip_decision> clip_decision_kernel("global_norm/clip_decision");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"
#include "ops/segments.h"

/// Kernels behind ops/reduce.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// On CUDA for f32 partial sums: every sum is made of the sums of 16 interleaved sets of segments, added in
/// order.
void sum_segments(const SegmentSums& sums);
/// partial [segments, cols] = the sum of the rows of each segment of x [rows, cols].
void segment_sums(const Tensor& partial, const Tensor& x);
}  // namespace cpu
inline const Kernel<cpu::sum_segments> sum_segments_kernel("reduce/sum_segments");
inline const Kernel<cpu::segment_sums> segment_sums("reduce/segment_sums");

}  // namespace nemocube

#pragma once
#include <cstdint>

#include "core/autograd.h"
#include "core/parallel_for.h"
#include "ops/segments.h"

/// Sums over token rows, for gradients of norm weights, biases and conv taps. Rows are cut into segments of
/// `segment_rows`, each segment is summed in row order, and the sums of the segments are added in ascending
/// order. The order depends on the number of rows alone, so the number of threads changes no bit. The scan
/// sums the gradients of A_log, D and dt_bias by chunks instead of segments; sum_segments adds the sums of
/// chunks in the same way.
namespace nemocube {

/// out = (or +=) the column sums of `partial` [segments, cols] (f32 or f64). `out.to` has `cols` elements
/// in any contiguous shape, dtype as partial or narrower.
void sum_segments(const Output& out, const Tensor& partial);
/// Several sums. On CUDA one launch forms up to four whose results have the same dtype.
void sum_segments(const SegmentSums& sums);

/// out = (or +=) sum over rows of x [rows, cols].
void sum_rows(const Output& out, const Tensor& x);

/// Runs fn(segment, first_row, last_row) for every segment, in parallel.
template <class Fn>
void for_segments(std::int64_t rows, Fn&& fn) {
  parallel_for(segments_of(rows), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t first = s * segment_rows;
      const std::int64_t last = first + segment_rows < rows ? first + segment_rows : rows;
      fn(s, first, last);
    }
  });
}

}  // namespace nemocube

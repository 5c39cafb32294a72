#pragma once
#include <cstdint>

#include "core/autograd.h"
#include "core/parallel_for.h"

/// Sums over token rows, in an order that depends on the row count alone: rows are cut into segments of
/// `segment_rows`, each segment is summed in row order, and the segments are added in ascending order.
/// Threads therefore never change a bit. For gradients of norm weights, biases and conv taps; those of A_log,
/// D and dt_bias come by chunks of the scan instead of segments and are added here.
namespace nemocube {

constexpr std::int64_t segment_rows = 64;
inline std::int64_t segments_of(std::int64_t rows) { return (rows + segment_rows - 1) / segment_rows; }

/// `partial` [segments, cols] (f32 or f64), written by the caller for each segment -> out = (or +=) column
/// sums. `out.to` has `cols` elements in any contiguous shape, dtype as partial or narrower.
void sum_segments(const Output& out, const Tensor& partial);

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

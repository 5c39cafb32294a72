#pragma once
#include <cstdint>
#include <vector>

#include "core/autograd.h"

namespace nemocube {

/// Sums over token rows are formed in segments of this many rows (ops/reduce.h).
constexpr std::int64_t segment_rows = 64;
inline std::int64_t segments_of(std::int64_t rows) { return (rows + segment_rows - 1) / segment_rows; }

/// `out` = (or +=) the column sums of `partial` [segments, cols]. See ops/reduce.h.
struct SegmentSum {
  Output out;
  Tensor partial;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(out.to);
    fn(partial);
  }
};
using SegmentSums = std::vector<SegmentSum>;

}  // namespace nemocube

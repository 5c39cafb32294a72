#pragma once
#include <algorithm>

#include "core/parallel_for.h"

namespace nemocube::cpu {

/// For kernels that treat every element alike: calls fn(row, first, last) over pieces of at most 4096
/// columns, in parallel. `flat`: all tensors are contiguous and count as one row.
template <class Fn>
void for_pieces(std::int64_t rows, std::int64_t cols, bool flat, Fn&& fn) {
  constexpr std::int64_t slice = 4096;
  if (flat) {
    cols *= rows;
    rows = 1;
  }
  const std::int64_t pieces = (cols + slice - 1) / slice;
  const std::int64_t grain = 1 + 16384 / (std::min(cols, slice) + 1);
  parallel_for(rows * pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % pieces * slice;
      fn(i / pieces, first, std::min(cols, first + slice));
    }
  });
}

}  // namespace nemocube::cpu

#pragma once
#include <algorithm>

#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"

/// Kernels that move rows. A block has one or several rows, and `lanes` threads for each of them; a thread
/// has packs lane, lane + lanes, .. of N neighbouring columns.
namespace nemocube::cuda {

constexpr int most_lanes = 256;

struct Lanes {
  int lanes = 1, rows_of_block = 1;
  std::int64_t rows = 0, cols = 0;
  unsigned blocks() const { return blocks_for(rows, rows_of_block); }
  unsigned threads() const { return static_cast<unsigned>(lanes * rows_of_block); }
};

/// Lanes for packs of `pack` columns: a power of two, or a multiple of a warp. Whole warps for one row in a
/// block where `whole_block`.
inline Lanes lanes_of(std::int64_t rows, std::int64_t cols, int pack, bool whole_block = false) {
  const std::int64_t packs = std::max<std::int64_t>(1, (cols + pack - 1) / pack);
  const std::int64_t turns = (packs + most_lanes - 1) / most_lanes;
  Lanes l{.lanes = whole_block ? warp_threads : 1, .rows = rows, .cols = cols};
  if (packs <= warp_threads)
    while (l.lanes < packs) l.lanes *= 2;
  else
    l.lanes = static_cast<int>((packs + turns * warp_threads - 1) / (turns * warp_threads)) * warp_threads;
  if (!whole_block) l.rows_of_block = std::max(1, most_lanes / 2 / l.lanes);
  return l;
}

/// In a kernel: calls fn(row, column) for the first column of each pack of the thread.
template <int N, class Fn>
__device__ void for_own_packs(const Lanes& l, Fn&& fn) {
  const int lane = threadIdx.x % l.lanes;
  const std::int64_t row = std::int64_t{blockIdx.x} * l.rows_of_block + threadIdx.x / l.lanes;
  if (row >= l.rows) return;
  for (std::int64_t c = std::int64_t{lane} * N; c < l.cols; c += std::int64_t{l.lanes} * N) fn(row, c);
}

}  // namespace nemocube::cuda

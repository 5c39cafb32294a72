#pragma once
#include <algorithm>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"

/// Kernels that treat every element alike. A thread has N neighbours of one row, a block has threads of one
/// row.
namespace nemocube::cuda {

constexpr int elementwise_threads = 256;

struct RowBlocks {
  unsigned blocks_per_row = 1;
  std::int64_t cols = 0;
};

/// In a kernel: calls fn(row, column, count) for the first column of the thread's pack and the number of
/// columns from there to the end of the row, unless the thread has none.
template <int N, class Fn>
__device__ void for_own_pack(const RowBlocks& grid, Fn&& fn) {
  const std::int64_t r = blockIdx.x / grid.blocks_per_row;
  const std::int64_t block = blockIdx.x % grid.blocks_per_row;
  const std::int64_t c = (block * elementwise_threads + threadIdx.x) * N;
  if (c < grid.cols) fn(r, c, grid.cols - c);
}

/// Queues kernel(RowBlocks, arguments..) with N columns for each thread.
template <int N, class... Parameters, class... Arguments>
void launch_elementwise(const char* name, void (*kernel)(RowBlocks, Parameters...), std::int64_t rows,
                        std::int64_t cols, const Arguments&... arguments) {
  const RowBlocks grid{blocks_for(cols, std::int64_t{N} * elementwise_threads), cols};
  launch(name, kernel, blocks_for(rows * grid.blocks_per_row, 1), elementwise_threads, grid, arguments...);
}

/// Tensors of one shape as a single row where all of them are contiguous.
template <class... Tensors>
bool all_contiguous(const Tensors&... tensors) {
  return (tensors.contiguous() && ...);
}
inline Tensor as_one_row(const Tensor& t, bool possible) { return possible ? t.reshape({1, t.numel()}) : t; }

}  // namespace nemocube::cuda

#pragma once
#include <cub/block/block_reduce.cuh>

namespace nemocube::cuda {

/// The sum over a block of `threads`, for all of its threads, in a fixed order. T has `+`.
template <int threads, class T>
__device__ T block_sum(T x) {
  using Reduce = cub::BlockReduce<T, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ T of_block;
  x = Reduce(storage).Sum(x);
  if (threadIdx.x == 0) of_block = x;
  __syncthreads();
  x = of_block;
  __syncthreads();  // storage and of_block are free for the next sum
  return x;
}

}  // namespace nemocube::cuda

#pragma once
#include <cmath>

#include "core/cuda/device.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"

/// The common part of the router's kernels on CUDA. A warp has a token: thread l has experts l, l + 32, .. of
/// it.
namespace nemocube::cuda::router {

constexpr int warps_of_block = 8;
constexpr float tiny = 1e-20F;  // keeps a sum of scores above 0

__device__ inline int own_lane() { return threadIdx.x % warp_threads; }
__device__ inline std::int64_t own_token(int warps) {
  return std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads;
}

/// Calls fn(i) for the numbers of the thread among `count`.
template <class Fn>
__device__ void for_own(int count, Fn&& fn) {
  for (int i = own_lane(); i < count; i += warp_threads) fn(i);
}

/// Offsets of the parts that tokens form; null: one part.
struct Parts {
  const std::int64_t* offsets = nullptr;
  int count = 1;
  explicit Parts(const Tensor& t) {
    if (!t.defined()) return;
    offsets = data_of<std::int64_t>(t);
    count = static_cast<int>(t.numel() - 1);
  }
  /// The part of a token: the last one that begins with it or before; -1 for a spare row.
  __device__ int of(std::int64_t token) const {
    if (!offsets) return 0;
    if (token >= offsets[count]) return -1;
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (offsets[middle] <= token ? low : high) = middle;
    }
    return low;
  }
  __device__ std::int64_t tokens_of(int part, std::int64_t all) const {
    return offsets ? offsets[part + 1] - offsets[part] : all;
  }
};

/// The largest of the logits, and sum_i exp(l_i - largest), in all threads.
struct ExpSum {
  float most, sum;
};
__device__ inline ExpSum exp_sum(const float* logits, int n) {
  float most = -INFINITY, sum = 0;
  for_own(n, [&](int i) { most = fmaxf(most, logits[i]); });
  most = warp_max(most);
  for_own(n, [&](int i) { sum += expf(logits[i] - most); });
  return {most, warp_sum(sum)};
}
/// log sum_i exp l_i
__device__ inline float log_sum(const float* logits, int n) {
  const ExpSum of = exp_sum(logits, n);
  return of.most + logf(of.sum);
}

}  // namespace nemocube::cuda::router

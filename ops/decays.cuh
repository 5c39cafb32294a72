#pragma once
#include <cstdint>

#include "core/cuda/warp.cuh"

/// Parts of the kernels of scans: sums of logarithms of decays, and the place of a chunk.
namespace nemocube::cuda::decays {

/// Which sequence has the part `index`, from a table of each sequence's first part: the last one that begins
/// with this part or before; sequences without parts come before it.
__device__ inline std::int64_t sequence_of(const std::int64_t* first, std::int64_t sequences,
                                           std::int64_t index) {
  std::int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (first[middle] <= index ? low : high) = middle;
  }
  return low;
}

__device__ inline float softplus(float v) { return v > 20 ? v : log1pf(expf(v)); }
__device__ inline float softplus_grad(float v) { return v > 20 ? 1 : 1 / (1 + expf(-v)); }

/// A sum of many numbers in two f32: high + low, which differs from the exact sum by some 2^-46 of it. Sums
/// of dt A are formed so instead of in f64, of which GPUs for graphics have few units; the CPU kernels also
/// keep them as two f32.
struct LongSum {
  float high, low;
};
__device__ inline LongSum exact_product(float a, float b) {
  const float high = a * b;
  return {high, isfinite(high) ? fmaf(a, b, -high) : 0};
}
__device__ inline LongSum operator+(LongSum a, LongSum b) {
  const float sum = a.high + b.high;
  if (!isfinite(sum)) return {sum, 0};
  const float of_b = sum - a.high;
  const float error = (a.high - (sum - of_b)) + (b.high - of_b) + (a.low + b.low);
  const float high = sum + error;
  return {high, error - (high - sum)};
}
/// a - b, rounded to f32 after the subtraction.
__device__ inline float difference(LongSum a, LongSum b) { return (a.high - b.high) + (a.low - b.low); }
/// e^(a - b) where a <= b; 1 where a > b, which callers mask.
__device__ inline float decay_between(LongSum a, LongSum b) {
  const float span = difference(a, b);
  return expf(span > 0 ? 0 : span);
}

/// In a warp: the sums of the values of threads 0 .. this one.
__device__ inline LongSum running_sum(LongSum x) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const LongSum before{__shfl_up_sync(whole_warp, x.high, distance),
                         __shfl_up_sync(whole_warp, x.low, distance)};
    if (lane >= distance) x = before + x;
  }
  return x;
}

}  // namespace nemocube::cuda::decays

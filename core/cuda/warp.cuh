#pragma once

/// Sums and maxima over the 32 threads of a warp. All threads take part and all get the result; the order of
/// the additions is fixed.
namespace nemocube::cuda {

constexpr int warp_threads = 32;
constexpr unsigned whole_warp = 0xffffffffU;

/// Over groups of `width` neighbouring threads, a power of two.
template <int width = warp_threads, class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(whole_warp, x, distance);
  return x;
}

/// A NaN among the values may or may not be the result.
template <int width = warp_threads>
__device__ float warp_max(float x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(whole_warp, x, distance));
  return x;
}

}  // namespace nemocube::cuda

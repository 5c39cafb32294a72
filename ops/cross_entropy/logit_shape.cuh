#pragma once
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/cross_entropy_kernels.h"

/// z' of logits z (LogitShape) in CUDA kernels, which have one of two structs as an argument: with the first
/// they are as if nothing could shape logits.
namespace nemocube::cuda {

/// Logits that are z' already.
struct PlainLogits {
  static constexpr bool plain = true;
  template <bool aligned, int N>
  __device__ void apply(float (&)[N], std::int64_t, std::int64_t) const {}
  __device__ float at(float z, std::int64_t) const { return z; }
  __device__ float slope(float) const { return 1; }
};

/// LogitShape, for kernels.
struct ShapedLogits {
  static constexpr bool plain = false;
  const float* bias;       // null: none
  float cap, inverse_cap;  // 0: none
  __device__ float capped(float z) const { return cap > 0 ? cap * tanhf(z * inverse_cap) : z; }

  /// Makes z' of the logits of `columns` columns from c on.
  template <bool aligned, int N>
  __device__ void apply(float (&z)[N], std::int64_t c, std::int64_t columns) const {
    constexpr int M = whole_pack<float>;
    if (bias) {
#pragma unroll
      for (int first = 0; first < N; first += M) {
        float b[M];
        Pack<float, M>::template load<aligned>(bias + c + first, columns - first).read(b);
#pragma unroll
        for (int i = 0; i < M; ++i) z[first + i] += b[i];
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) z[i] = capped(z[i]);
  }
  /// z' of a logit of column c.
  __device__ float at(float z, std::int64_t c) const { return capped(bias ? z + bias[c] : z); }
  /// dz' / dz, of z'.
  __device__ float slope(float shaped) const {
    const float t = shaped * inverse_cap;
    return cap > 0 ? 1 - t * t : 1;  // without a cap z' may be infinite, and t NaN
  }
};

/// Calls fn(PlainLogits or ShapedLogits).
template <class Fn>
void visit_shape(const LogitShape& shape, Fn&& fn) {
  if (shape.plain()) return fn(PlainLogits{});
  const float cap = static_cast<float>(shape.soft_cap);
  fn(ShapedLogits{shape.bias ? data_of<float>(shape.bias) : nullptr, cap, cap > 0 ? 1 / cap : 0});
}

}  // namespace nemocube::cuda

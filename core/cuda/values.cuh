#pragma once
#include <cstdint>

#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"

namespace nemocube::cuda {

/// The first `count` of N neighbouring elements as f32, zeros instead of the others. `aligned`: by accesses
/// of 16 bytes, or of all N elements where these are fewer.
template <bool aligned, class T, int N>
__device__ void read_values(const T* from, std::int64_t count, float (&values)[N]) {
  constexpr int width = N < whole_pack<T> ? N : whole_pack<T>;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    float part[width];
    Pack<T, width>::template load<aligned>(from + i, count - i).read(part);
#pragma unroll
    for (int j = 0; j < width; ++j) values[i + j] = part[j];
  }
}

/// Writes the first `count` of N neighbouring f32 elements. `aligned`: by accesses of 16 bytes.
template <bool aligned, int N>
__device__ void write_values(float* to, std::int64_t count, const float (&values)[N]) {
  static_assert(N % 4 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float part[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    if (i < count) Pack<float, 4>::of(part).template store<aligned>(to + i, count - i);
  }
}

/// A contiguous parameter beside activations of type T: f32, or of type T. Not defined: zeros.
template <class T>
struct Parameter {
  const void* start = nullptr;
  bool as_f32 = false;

  template <bool aligned, int N>
  __device__ void read(std::int64_t first, std::int64_t count, float (&values)[N]) const {
    if (!start) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = 0;
    } else if (std::is_same_v<T, float> || as_f32) {
      read_values<aligned>(static_cast<const float*>(start) + first, count, values);
    } else {
      read_values<aligned>(static_cast<const T*>(start) + first, count, values);
    }
  }
  __device__ float operator[](std::int64_t i) const {
    if (!start) return 0;
    return std::is_same_v<T, float> || as_f32 ? static_cast<const float*>(start)[i]
                                              : to_float(static_cast<const T*>(start)[i]);
  }
};

template <class T>
Parameter<T> parameter_of(const Tensor& t) {
  if (!t.defined()) return {};
  expect(t.contiguous(), "a CUDA kernel wants a contiguous parameter, got rows ", t.row_stride(), " apart");
  if (t.dtype() == DType::f32) return {data_of<float>(t), true};
  return {data_of<T>(t), false};
}

}  // namespace nemocube::cuda

#pragma once
#include <cuda_bf16.h>

#include <cstring>

namespace nemocube::cuda {

namespace pack_detail {
template <int bytes>
struct Raw;
template <>
struct Raw<2> {
  using type = unsigned short;
};
template <>
struct Raw<4> {
  using type = unsigned;
};
template <>
struct Raw<8> {
  using type = uint2;
};
template <>
struct Raw<16> {
  using type = uint4;
};
}  // namespace pack_detail

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
/// Rounds to nearest even.
template <class T>
__device__ T rounded(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return __float2bfloat16_rn(x);
}

/// N neighbours of type T as they lie in memory. A thread reads and writes all of them by one access of up to
/// 16 bytes, at an address that is a multiple of their size.
template <class T, int N>
struct Pack {
  using Raw = typename pack_detail::Raw<sizeof(T) * N>::type;
  Raw raw{};

  /// The first `count` of N elements, by one access where all are there; zeros instead of the others. Not
  /// `aligned`: each element by an access of its own, at any address.
  template <bool aligned = true>
  static __device__ Pack load(const T* from, std::int64_t count) {
    Pack pack;
    if (aligned && count >= N) {
      pack.raw = *reinterpret_cast<const Raw*>(from);
    } else {
      T elements[N] = {};
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < count) elements[i] = from[i];
      memcpy(&pack.raw, elements, sizeof(Raw));
    }
    return pack;
  }
  template <bool aligned = true>
  __device__ void store(T* to, std::int64_t count) const {
    if (aligned && count >= N) {
      // The compiler would split a plain assignment into stores that it shares with the branch below.
      __stcg(reinterpret_cast<Raw*>(to), raw);
    } else {
      T elements[N];
      memcpy(elements, &raw, sizeof(Raw));
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i < count) to[i] = elements[i];
    }
  }
  __device__ void read(float (&values)[N]) const {
    T elements[N];
    memcpy(elements, &raw, sizeof(Raw));
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = to_float(elements[i]);
  }
  static __device__ Pack of(const float (&values)[N]) {
    T elements[N];
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i] = rounded<T>(values[i]);
    Pack pack;
    memcpy(&pack.raw, elements, sizeof(Raw));
    return pack;
  }
};

/// Elements of a 16-byte access.
template <class T>
constexpr int whole_pack = 16 / sizeof(T);

}  // namespace nemocube::cuda

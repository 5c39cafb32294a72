#pragma once
#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

/// Tensors of the device for tests of streams and graphs.
namespace nemocube::testing {

constexpr std::int64_t elements = 5000;

/// f32 [elements]
inline Tensor full(double value) {
  const Tensor t = Tensor::empty({elements}, DType::f32, Device::cuda);
  t.fill(value);
  return t;
}

inline bool all_are(const Tensor& t, double value) {
  return std::ranges::all_of(t.to_vector(), [value](double v) { return v == value; });
}

}  // namespace nemocube::testing

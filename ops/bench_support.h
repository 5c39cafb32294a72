#pragma once
#include <cmath>
#include <memory>
#include <string_view>

#include "core/autograd.h"
#include "core/rng.h"
#include "ops/bench.h"

/// Shared by the benchmarks of operations: operands, byte counts, comparisons.
namespace nemocube::bench {

/// A tensor of normal random numbers; tensors of different names differ.
inline Tensor normal(const Shape& shape, DType dtype, std::string_view name, double mean = 0,
                     double sigma = 1) {
  const Tensor t = Tensor::empty(shape, dtype, Device::cpu);
  fill_normal(t, RandomStream(1, name), mean, sigma);
  return t;
}

/// The same on the device that `o` names.
inline Tensor normal(const BenchOptions& o, const Shape& shape, std::string_view name) {
  return normal(shape, o.dtype, name).to(o.device);
}

/// An operand as it occurs inside a model: an intermediate value, whose gradient has the dtype of the value
/// and is written once. Every backward pass needs a new one.
inline Var intermediate(const Tensor& t) {
  return {t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false)};
}

/// Bytes of some tensors together.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + static_cast<double>(tensors.bytes()));
}

inline bool close(double got, double want, double tolerance) {
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

/// Whether all elements are close.
inline bool close(const Tensor& got, const Tensor& want, double tolerance) {
  const auto a = got.to_vector(), b = want.to_vector();
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!close(a[i], b[i], tolerance)) return false;
  return true;
}

}  // namespace nemocube::bench

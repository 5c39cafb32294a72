#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/kernel.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

/// Targets, and losses to compare with, for the tests of cross_entropy and linear_cross_entropy.
namespace nemocube::testing {

using Targets = std::vector<std::int64_t>;

inline Tensor labels_of(const Targets& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

inline Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

// Every `period`-th row is ignored.
inline Targets some_labels(std::int64_t rows, std::int64_t vocabulary, std::int64_t period) {
  Targets labels;
  for (std::int64_t t = 0; t < rows; ++t)
    labels.push_back(period > 0 && t % period == period - 1 ? ignored_label : (t * 7 + 3) % vocabulary);
  return labels;
}

struct Expected {
  double loss = 0;
  Tensor dlogits;
};

// The formulas of the contract in f64.
inline Expected reference(const Tensor& logits, const Targets& labels) {
  Expected e{0, Tensor::zeros(logits.shape(), DType::f64, Device::cpu)};
  const Tensor z = logits.to(DType::f64);
  for (std::int64_t t = 0; t < z.rows(); ++t) {
    const std::int64_t label = labels[static_cast<std::size_t>(t)];
    if (label == ignored_label) continue;
    const double* row = z.row<double>(t);
    double most = row[0], sum = 0;
    for (std::int64_t v = 0; v < z.cols(); ++v) most = std::max(most, row[v]);
    for (std::int64_t v = 0; v < z.cols(); ++v) sum += std::exp(row[v] - most);
    e.loss += most + std::log(sum) - row[label];
    for (std::int64_t v = 0; v < z.cols(); ++v)
      e.dlogits.row<double>(t)[v] = std::exp(row[v] - most) / sum - (v == label ? 1 : 0);
  }
  return e;
}

/// The devices of linear_cross_entropy.
inline std::vector<Device> head_devices() {
  std::vector<Device> devices = test_devices("cross_entropy");
  if (!runs_on_cuda("matmul")) std::erase_if(devices, [](Device device) { return device.is_cuda(); });
  return devices;
}

inline Var intermediate(const Tensor& t) {
  return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
}

inline double value(const Var& loss) { return loss.value().to_vector().front(); }

}  // namespace nemocube::testing

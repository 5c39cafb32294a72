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
inline Expected reference(const Tensor& logits, const Targets& labels, const LogitOptions& options = {}) {
  Expected e{0, Tensor::zeros(logits.shape(), DType::f64, Device::cpu)};
  const Tensor z = logits.to(DType::f64).clone();
  const auto bias = options.bias.defined() ? options.bias.value().to_vector() : std::vector<double>();
  const double cap = options.soft_cap;
  for (std::int64_t t = 0; t < z.rows(); ++t)
    for (std::int64_t v = 0; v < z.cols(); ++v) {
      double& value = z.row<double>(t)[v];
      if (!bias.empty()) value += bias[static_cast<std::size_t>(v)];
      if (cap > 0) value = cap * std::tanh(value / cap);
    }
  for (std::int64_t t = 0; t < z.rows(); ++t) {
    const std::int64_t label = labels[static_cast<std::size_t>(t)];
    if (label == ignored_label) continue;
    const double* row = z.row<double>(t);
    double most = row[0], sum = 0;
    for (std::int64_t v = 0; v < z.cols(); ++v) most = std::max(most, row[v]);
    for (std::int64_t v = 0; v < z.cols(); ++v) sum += std::exp(row[v] - most);
    const double weight = options.z_loss_weight;
    const std::int64_t first = std::find(row, row + z.cols(), most) - row;
    e.loss += most + std::log(sum) - row[label] + weight * most * most;
    for (std::int64_t v = 0; v < z.cols(); ++v) {
      const double slope = cap > 0 ? 1 - row[v] / cap * (row[v] / cap) : 1;
      const double of_first = v == first ? 2 * weight * most : 0;
      e.dlogits.row<double>(t)[v] = (std::exp(row[v] - most) / sum - (v == label ? 1 : 0) + of_first) * slope;
    }
  }
  return e;
}

inline Tensor column_sums(const Tensor& t) {
  std::vector<double> sums(static_cast<std::size_t>(t.cols()));
  const auto values = t.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
  return Tensor::from(sums, {t.cols()});
}

inline Tensor times(const Tensor& t, double factor) {
  auto values = t.to_vector();
  for (double& v : values) v *= factor;
  return Tensor::from(values, t.shape());
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

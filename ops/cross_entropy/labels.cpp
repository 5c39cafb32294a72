#include "ops/cross_entropy/labels.h"

#include <algorithm>

namespace nemocube {

Labels::Labels(const Tensor& labels) : Labels(labels, 0) {}

Labels::Labels(const Tensor& labels, std::int64_t capacity, const Tensor& factors) : weights(factors) {
  check_dtype("labels", labels, DType::i64);
  require(labels.contiguous(), "labels: want contiguous values, got shape ", labels.shape());
  values = labels.reshape({labels.numel()});
  if (weights) {
    check_dtype("labels: weights", weights, DType::f64);
    check_shape("labels: weights", weights, {values.numel()});
  }
  std::vector<std::int64_t> found, found_targets;
  std::vector<double> found_weights;
  for (std::int64_t t = 0; t < values.numel(); ++t) {
    const std::int64_t label = values.data<std::int64_t>()[t];
    if (label == ignored_label) continue;
    found.push_back(t);
    found_targets.push_back(label);
    if (weights) found_weights.push_back(weights.data<double>()[t]);
  }
  if (capacity > 0) {
    capacity = std::min(capacity, values.numel());
    require(std::ssize(found) <= capacity, "labels: want room for ", found.size(),
            " targets, got a capacity of ", capacity);
    found.resize(static_cast<std::size_t>(capacity), values.numel());
    found_targets.resize(static_cast<std::size_t>(capacity), ignored_label);
  }
  rows = Tensor::from(found, {std::ssize(found)});
  targets = Tensor::from(found_targets, {std::ssize(found)});
  if (!weights) return;
  found_weights.resize(found.size());
  target_weights = Tensor::from(found_weights, {std::ssize(found)});
}

Labels Labels::to(Device device) const {
  Labels there;
  there.values = values.to(device);
  there.rows = rows.to(device);
  there.targets = targets.to(device);
  if (weights) there.weights = weights.to(device);
  if (target_weights) there.target_weights = target_weights.to(device);
  return there;
}

void Labels::copy_from(const Labels& other) const {
  values.copy_from(other.values);
  rows.copy_from(other.rows);
  targets.copy_from(other.targets);
  if (!weights) return;
  weights.copy_from(other.weights);
  target_weights.copy_from(other.target_weights);
}

}  // namespace nemocube

#include "ops/cross_entropy/labels.h"

#include <algorithm>

namespace nemocube {

Labels::Labels(const Tensor& labels) : Labels(labels, 0) {}

Labels::Labels(const Tensor& labels, std::int64_t capacity) {
  check_dtype("labels", labels, DType::i64);
  require(labels.contiguous(), "labels: want contiguous values, got shape ", labels.shape());
  values = labels.reshape({labels.numel()});
  std::vector<std::int64_t> found, found_targets;
  for (std::int64_t t = 0; t < values.numel(); ++t) {
    const std::int64_t label = values.data<std::int64_t>()[t];
    if (label == ignored_label) continue;
    found.push_back(t);
    found_targets.push_back(label);
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
}

Labels Labels::to(Device device) const {
  Labels there;
  there.values = values.to(device);
  there.rows = rows.to(device);
  there.targets = targets.to(device);
  return there;
}

void Labels::copy_from(const Labels& other) const {
  values.copy_from(other.values);
  rows.copy_from(other.rows);
  targets.copy_from(other.targets);
}

}  // namespace nemocube

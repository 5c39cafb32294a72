#include "ops/cross_entropy/labels.h"

namespace nemocube {

Labels::Labels(const Tensor& labels) {
  check_dtype("labels", labels, DType::i64);
  require(labels.contiguous(), "labels: want contiguous values, got shape ", labels.shape());
  values = labels.reshape({labels.numel()});
  std::vector<std::int64_t> found;
  for (std::int64_t t = 0; t < values.numel(); ++t)
    if (values.data<std::int64_t>()[t] != ignored_label) found.push_back(t);
  rows = Tensor::from(found, {std::ssize(found)});
}

Labels Labels::to(Device device) const {
  Labels there;
  there.values = values.to(device);
  there.rows = rows.to(device);
  return there;
}

}  // namespace nemocube

#include "data/datasets/tokens.h"

#include "data/safetensors/reader.h"

namespace nemocube {

namespace {

void check_values(const std::string& what, const char* name, const Tensor& tensor, bool may_be_ignored) {
  for (std::int64_t r = 0; r < tensor.dim(0); ++r)
    for (std::int64_t t = 0; t < tensor.dim(1); ++t) {
      const std::int64_t id = tensor.row<std::int64_t>(r)[t];
      require(id >= 0 || (may_be_ignored && id == ignored_label), what, ": tensor '", name, "' holds ", id,
              " at row ", r, ", position ", t);
    }
}

}  // namespace

TokensDataset::TokensDataset(std::string what, Tensor input_ids, Tensor labels)
    : what_(std::move(what)), input_ids_(std::move(input_ids)), labels_(std::move(labels)) {
  check_dtype(what_ + ": tensor 'input_ids'", input_ids_, DType::i64);
  check_dtype(what_ + ": tensor 'labels'", labels_, DType::i64);
  require(input_ids_.ndim() == 2 && input_ids_.numel() > 0, what_, ": tensor 'input_ids' has shape ",
          input_ids_.shape(), ", want [rows, positions], neither 0");
  check_shape(what_ + ": tensor 'labels'", labels_, input_ids_.shape());
  check_values(what_, "input_ids", input_ids_, false);
  check_values(what_, "labels", labels_, true);
  require(count_labels(labels_) > 0, what_, ": tensor 'labels' holds no label, only ", ignored_label);
}

Sample TokensDataset::sample(std::int64_t i) const {
  check_index(i);
  const std::int64_t length = input_ids_.dim(1);
  Sample sample;
  sample.id = cat("row ", i);
  sample.lengths = {length};
  const std::int64_t* ids = input_ids_.row<std::int64_t>(i);
  const std::int64_t* labels = labels_.row<std::int64_t>(i);
  sample.input_ids.assign(ids, ids + length);
  sample.labels.assign(labels, labels + length);
  return sample;
}

std::shared_ptr<const TokensDataset> open_tokens_dataset(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  return std::make_shared<TokensDataset>(path.string(), file.tensor("input_ids"), file.tensor("labels"));
}

}  // namespace nemocube

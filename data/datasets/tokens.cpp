#include "data/datasets/tokens.h"

#include <algorithm>
#include <span>

namespace nemocube {

TokensDataset::TokensDataset(const std::filesystem::path& path, std::optional<std::int64_t> limit)
    : file_(path), input_ids_(file_.at("input_ids")), labels_(file_.at("labels")) {
  const std::string what = path.string();
  const Tensor ids = file_.meta(input_ids_), labels = file_.meta(labels_);
  check_dtype(what + ": tensor 'input_ids'", ids, DType::i64);
  check_dtype(what + ": tensor 'labels'", labels, DType::i64);
  require(ids.ndim() == 2 && ids.numel() > 0, what, ": tensor 'input_ids' has shape ", ids.shape(),
          ", want [rows, positions], neither 0");
  check_shape(what + ": tensor 'labels'", labels, ids.shape());
  rows_ = ids.dim(0);
  positions_ = ids.dim(1);
  std::int64_t highest = 0, highest_label = ignored_label;
  const auto highest_of = [&](const StoredTensor& tensor, bool may_be_ignored, std::int64_t& most) {
    for (std::int64_t i = 0; i < rows_; ++i) {
      const std::vector<std::int64_t> values = row(tensor, i, may_be_ignored);
      sum_.add(std::as_bytes(std::span(values)));
      most = std::max(most, std::ranges::max(values));
    }
  };
  highest_of(input_ids_, false, highest);
  highest_of(labels_, true, highest_label);
  require(highest_label != ignored_label, what, ": tensor 'labels' holds no label, only ", ignored_label);
  highest_ = std::max(highest, highest_label);
  if (limit) rows_ = std::min(rows_, *limit);
}

std::vector<std::int64_t> TokensDataset::row(const StoredTensor& tensor, std::int64_t i,
                                             bool may_be_ignored) const {
  std::vector<std::int64_t> row(static_cast<std::size_t>(positions_));
  const auto bytes = std::as_writable_bytes(std::span(row));
  file_.read_bytes(tensor, i * std::ssize(bytes), bytes);
  for (std::int64_t t = 0; t < positions_; ++t) {
    const std::int64_t id = row[static_cast<std::size_t>(t)];
    require((id >= 0 && id <= highest_) || (may_be_ignored && id == ignored_label), file_.path().string(),
            ": tensor '", tensor.name, "' holds ", id, " at row ", i, ", position ", t,
            id > highest_ ? cat("; the highest was ", highest_, " when the file was opened") : "");
  }
  return row;
}

Sample TokensDataset::sample(std::int64_t i) const {
  check_index(i);
  Sample sample;
  sample.id = cat("row ", i);
  sample.lengths = {positions_};
  sample.input_ids = row(input_ids_, i, false);
  sample.labels = row(labels_, i, true);
  return sample;
}

}  // namespace nemocube

#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/tensor.h"
#include "data/datasets/dataset.h"

namespace nemocube {

/// Rows that were tokenised elsewhere, from a safetensors file: tensors `input_ids` and `labels`, i64 [rows,
/// positions], labels shifted already. Every position counts as content.
class TokensDataset final : public Dataset {
 public:
  /// Throws Error naming `what` (the file) and the tensor when dtype, shape or values do not fit: ids are
  /// >= 0, labels are >= 0 or -100, and not all -100.
  TokensDataset(std::string what, Tensor input_ids, Tensor labels);
  std::int64_t size() const override { return input_ids_.dim(0); }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t) const override { return input_ids_.dim(1); }

 private:
  std::string what_;
  Tensor input_ids_, labels_;
};

/// The data set of a safetensors file; its other tensors are not looked at.
std::shared_ptr<const TokensDataset> open_tokens_dataset(const std::filesystem::path& path);

}  // namespace nemocube

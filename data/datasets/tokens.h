#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/tensor.h"
#include "data/datasets/dataset.h"

namespace nemocube {

/// Rows that another program tokenised, from a safetensors file with tensors `input_ids` and `labels`, both
/// i64 [rows, positions]. The labels are already shifted. Every position counts as content.
class TokensDataset final : public Dataset {
 public:
  /// Throws Error naming `what` (the file) and the tensor for a wrong dtype or shape, a negative id, a
  /// negative label other than -100, and when all labels are -100.
  TokensDataset(std::string what, Tensor input_ids, Tensor labels);
  std::int64_t size() const override { return input_ids_.dim(0); }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t) const override { return input_ids_.dim(1); }

 private:
  std::string what_;
  Tensor input_ids_, labels_;
};

/// Opens the data set in a safetensors file; other tensors of the file are ignored.
std::shared_ptr<const TokensDataset> open_tokens_dataset(const std::filesystem::path& path);

}  // namespace nemocube

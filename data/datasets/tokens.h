#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/safetensors/reader.h"

namespace nemocube {

/// Rows that another program tokenised, from a safetensors file with tensors `input_ids` and `labels`, both
/// i64 [rows, positions]; other tensors of the file are ignored. The labels are already shifted. Every
/// position counts as content. sample() reads a row.
class TokensDataset final : public Dataset {
 public:
  /// Reads the whole file once. The first `limit` rows count. Throws Error naming file and tensor for a wrong
  /// dtype or shape, a negative id, a negative label other than -100, and when all labels are -100.
  explicit TokensDataset(const std::filesystem::path& path, std::optional<std::int64_t> limit = {});
  std::int64_t size() const override { return rows_; }
  /// Throws Error naming the file when the file has been cut off, or changed since it was opened so that ids
  /// are out of their former range.
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t) const override { return positions_; }
  /// The sum covers the two tensors, one behind the other.
  std::vector<DataFile> files() const override { return {{file_.path(), sum_}}; }

 private:
  std::vector<std::int64_t> row(const StoredTensor& tensor, std::int64_t i, bool may_be_ignored) const;
  SafetensorsFile file_;
  const StoredTensor &input_ids_, &labels_;
  FileSum sum_;
  std::int64_t rows_ = 0, positions_ = 0;
  std::int64_t highest_ = std::numeric_limits<std::int64_t>::max();  ///< id or label in the file
};

}  // namespace nemocube

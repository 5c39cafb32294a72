#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/dataset.h"

/// Several documents in one row. Sample::lengths separates them: attention, convolution and scan start afresh
/// at each document. Labels were shifted within each document, so no document predicts the first token of the
/// next.
namespace nemocube {

enum class Packing {
  thd,   ///< in order; the first row that does not fit closes the pack and opens the next
  neat,  ///< longest first, each into the least-filled pack, or into a new pack if it does not fit
};

struct PackOptions {
  std::int64_t pack_size = 0;
  Packing strategy = Packing::thd;
  std::optional<std::int64_t> max_packs = std::nullopt;  ///< stop after this many packs
  bool drop_long = true;  ///< drop rows longer than a pack, with one warning; false: Error
  /// Called while rows are measured, which means that their text is tokenized: `done` of `total` rows.
  std::function<void(std::int64_t done, std::int64_t total)> on_rows = {};
};

/// The rows of each pack, in order. `lengths` are the lengths of the rows, none above pack_size. Empty rows
/// are left out.
std::vector<std::vector<std::int64_t>> pack_rows(std::span<const std::int64_t> lengths, Packing strategy,
                                                 std::int64_t pack_size);

/// Packs of pack_size positions: the content of the rows (without their padding), then padding. A pack's id
/// is the ids of its rows, joined by commas.
class PackedDataset final : public Dataset {
 public:
  /// Throws Error when pack_size is below 1, a row is too long and drop_long is false, or no pack results.
  PackedDataset(std::shared_ptr<const Dataset> rows, const PackOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(packs_.size()); }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t i) const override;
  bool made_on_demand() const override { return rows_->made_on_demand(); }
  std::int64_t pad_id() const override { return rows_->pad_id(); }
  std::vector<DataFile> files() const override { return rows_->files(); }
  std::int64_t dropped() const { return dropped_; }

 private:
  std::shared_ptr<const Dataset> rows_;
  std::int64_t pack_size_;
  std::vector<std::vector<std::int64_t>> packs_;  // indices of rows_
  std::vector<std::int64_t> content_lengths_;     // of packs
  std::int64_t dropped_ = 0;
};

}  // namespace nemocube

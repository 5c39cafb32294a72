#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/dataset.h"

/// Several documents in one row. Sample::lengths keeps them apart: attention, convolution and scan start
/// afresh at each document, and since labels were shifted inside each document none predicts the next one's
/// first token.
namespace nemocube {

enum class Packing {
  thd,   ///< in order: a pack is closed by the first row that does not fit
  neat,  ///< longest first, each into the least-filled pack if it fits there, else into a new one
};

struct PackOptions {
  std::int64_t pack_size = 0;
  Packing strategy = Packing::thd;
  std::optional<std::int64_t> max_packs = std::nullopt;  ///< stop after so many
  bool drop_long = true;  ///< rows longer than a pack are dropped with one warning, else an Error
};

/// Which rows each pack holds, in order, for rows of these lengths, all within pack_size. Empty rows are left
/// out.
std::vector<std::vector<std::int64_t>> pack_rows(std::span<const std::int64_t> lengths, Packing strategy,
                                                 std::int64_t pack_size);

/// Packs of pack_size positions, the content of their rows (without padding) first. A pack's id joins those
/// of its rows by commas.
class PackedDataset final : public Dataset {
 public:
  /// Throws Error when pack_size is below 1, a row is too long and drop_long is false, or no pack results.
  PackedDataset(std::shared_ptr<const Dataset> rows, const PackOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(packs_.size()); }
  Sample sample(std::int64_t i) const override;
  std::int64_t pad_id() const override { return rows_->pad_id(); }
  std::int64_t dropped() const { return dropped_; }

 private:
  std::shared_ptr<const Dataset> rows_;
  std::int64_t pack_size_;
  std::vector<std::vector<std::int64_t>> packs_;  // indices of rows_
  std::int64_t dropped_ = 0;
};

}  // namespace nemocube

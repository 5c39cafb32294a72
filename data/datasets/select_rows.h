#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/row.h"

namespace nemocube {

/// Which rows of a file a recipe takes.
struct RowSelection {
  std::string split = "train";  ///< only the slice has an effect
  std::optional<std::int64_t> limit_dataset_samples = std::nullopt;
  /// Puts the rows in the order permutation(rows, seed) before the split is taken.
  std::optional<std::uint64_t> shuffle_seed = std::nullopt;
  std::string limit_key = "limit_dataset_samples";  ///< name of the limit in messages
};

/// The numbers of the selected rows of `rows`, in order. Throws Error naming `what` when there are none.
std::vector<std::int64_t> selected_rows(std::string_view what, const RowSelection& selection,
                                        std::int64_t rows);

/// Calls fn(0) ... fn(count - 1), by several threads. Rethrows the exception of the lowest number.
void for_rows(std::int64_t count, const std::function<void(std::int64_t)>& fn);
/// make(0) ... make(count - 1), by several threads. Rethrows the exception of the lowest number.
std::vector<TokenRow> make_rows(std::int64_t count, const std::function<TokenRow(std::int64_t)>& make);

/// make(). Its Error gets the file and the place of the row (JsonView::place()) in front, "f.jsonl: 'line 3':
/// ".
TokenRow row_at(const std::string& file, const std::string& place, const std::function<TokenRow()>& make);

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nemocube {

/// A recipe's `split`: a name, optionally with a slice as in Python: train, train[:100], train[10:20],
/// train[-5:], train[:10%] (percentages round to the nearest row).
struct DatasetSplit {
  struct Bound {
    std::int64_t value = 0;
    bool percent = false;
  };
  std::string name, text;  ///< `name` without the slice; `text` as written
  bool sliced = false;
  std::optional<Bound> begin, end;

  static DatasetSplit parse(std::string_view text);  ///< throws Error naming the text when it is not a split

  /// Rows [first, last) of a data set of `size` rows; bounds beyond the data are clipped. Throws Error naming
  /// `what` when no row is left.
  std::pair<std::int64_t, std::int64_t> rows(std::string_view what, std::int64_t size) const;
};

/// `split` with the slice [:limit] of the recipe's limit_dataset_samples. When `split` already has a slice,
/// the limit has no effect and a warning says so. Throws Error when the limit is below 1. Messages call the
/// limit `key`.
DatasetSplit with_limit(DatasetSplit split, std::optional<std::int64_t> limit,
                        std::string_view key = "limit_dataset_samples");

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nemocube {

/// A recipe's `split`: a name, possibly with a slice as in Python: train, train[:100], train[10:20],
/// train[-5:], train[:10%] (percentages round to the nearest row).
struct DatasetSplit {
  struct Bound {
    std::int64_t value = 0;
    bool percent = false;
  };
  std::string name;
  bool sliced = false;
  std::optional<Bound> begin, end;

  static DatasetSplit parse(std::string_view text);  ///< Error naming the text when it is no split

  /// Rows [first, last) of `size`, ends beyond the data clipped. Throws Error naming `what` when none is
  /// left.
  std::pair<std::int64_t, std::int64_t> rows(std::string_view what, std::int64_t size) const;
};

/// `split` with the recipe's limit_dataset_samples: [:limit], or a warning when the split is sliced already.
/// Throws Error when the limit is below 1.
DatasetSplit with_limit(DatasetSplit split, std::optional<std::int64_t> limit);

}  // namespace nemocube

#include "data/datasets/select_rows.h"

#include <exception>
#include <mutex>
#include <numeric>

#include "core/error.h"
#include "core/parallel_for.h"
#include "data/datasets/permutation.h"
#include "data/datasets/split.h"

namespace nemocube {

std::vector<std::int64_t> selected_rows(std::string_view what, const RowSelection& selection,
                                        std::int64_t rows) {
  std::vector<std::int64_t> order;
  if (selection.shuffle_seed) {
    order = permutation(rows, *selection.shuffle_seed);
  } else {
    order.resize(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  const auto [first, last] =
      with_limit(DatasetSplit::parse(selection.split), selection.limit_dataset_samples, selection.limit_key)
          .rows(what, rows);
  order.resize(static_cast<std::size_t>(last));
  order.erase(order.begin(), order.begin() + first);
  return order;
}

void for_rows(std::int64_t count, const std::function<void(std::int64_t)>& fn) {
  std::mutex mutex;
  std::int64_t first_bad = count;
  std::exception_ptr error;
  parallel_for(count, 16, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t i = begin;
    try {
      for (; i < end; ++i) fn(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (i >= first_bad) return;
      first_bad = i;
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

std::vector<TokenRow> make_rows(std::int64_t count, const std::function<TokenRow(std::int64_t)>& make) {
  std::vector<TokenRow> rows(static_cast<std::size_t>(count));
  for_rows(count, [&](std::int64_t i) { rows[static_cast<std::size_t>(i)] = make(i); });
  return rows;
}

TokenRow row_at(const std::string& file, const std::string& place, const std::function<TokenRow()>& make) {
  try {
    return make();
  } catch (const Error& error) {
    fail(file, ": ", place.empty() ? "" : cat("'", place, "': "), error.what());
  }
}

}  // namespace nemocube

#include "data/datasets/row_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "data/datasets/json_rows.h"

namespace nemocube {

RowOptions layout_for(const RowSource& source, std::int64_t longest) {
  RowOptions layout = source.layout;
  if (source.longest_multiple > 0) {
    layout.padding = Padding::max_length;
    layout.seq_length =
        (longest + source.longest_multiple - 1) / source.longest_multiple * source.longest_multiple;
  }
  return layout;
}

/// Takes the rows out that have an error.
static void leave_out_refused(const RowSource& source, std::vector<TokenRow>& rows,
                              const std::vector<std::string>& errors) {
  const std::int64_t all = std::ssize(rows);
  const auto first = std::ranges::find_if(errors, [](const std::string& error) { return !error.empty(); });
  std::size_t row = 0;
  std::erase_if(rows, [&](const TokenRow&) { return !errors[row++].empty(); });
  report_skipped(source.files, source.content, all, all - std::ssize(rows),
                 first == errors.end() ? "" : *first);
}

std::shared_ptr<const RowDataset> rows_in_memory(const RowSource& source) {
  std::vector<RowMaker> makers;
  std::vector<DataFile> files = for_each_valid_row(
      source.files, source.content, source.skip_invalid,
      [&](const JsonView& row, std::int64_t number) { makers.push_back(source.read(row, number)); });
  const auto chosen = selected_rows(source.what, source.selection, std::ssize(makers));
  std::vector<std::string> errors(chosen.size());
  std::vector<TokenRow> rows = make_rows(std::ssize(chosen), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      return makers[static_cast<std::size_t>(chosen[at])]();
    } catch (const Error& error) {
      if (!source.skip_invalid) throw;
      errors[at] = error.what();
      return TokenRow();
    }
  });
  leave_out_refused(source, rows, errors);
  std::int64_t longest = 0;
  for (const TokenRow& row : rows)
    if (row.label_tokens() > 0) longest = std::max(longest, row.size());
  return std::make_shared<RowDataset>(source.what, std::move(rows), layout_for(source, longest),
                                      source.pad_id, std::move(files));
}

}  // namespace nemocube

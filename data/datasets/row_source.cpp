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

std::shared_ptr<const RowDataset> rows_in_memory(const RowSource& source) {
  std::vector<RowMaker> makers;
  std::vector<DataFile> files = for_each_valid_row(
      source.files, source.content, source.skip_invalid,
      [&](const JsonView& row, std::int64_t number) { makers.push_back(source.read(row, number)); });
  const auto chosen = selected_rows(source.what, source.selection, std::ssize(makers));
  std::vector<TokenRow> rows = make_rows(std::ssize(chosen), [&](std::int64_t i) {
    return makers[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])]();
  });
  std::int64_t longest = 0;
  for (const TokenRow& row : rows)
    if (row.label_tokens() > 0) longest = std::max(longest, row.size());
  return std::make_shared<RowDataset>(source.what, std::move(rows), layout_for(source, longest),
                                      source.pad_id, std::move(files));
}

}  // namespace nemocube

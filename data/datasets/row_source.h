#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/datasets/row.h"
#include "data/datasets/select_rows.h"
#include "data/json/json.h"

namespace nemocube {

/// Makes the tokens of a row whose form has been checked. Throws Error where a template refuses the row.
using RowMaker = std::function<TokenRow()>;

/// The rows of files, one after another, and the rules by which a class of data sets makes tokens of them.
struct RowSource {
  std::string what;  ///< names the data set in messages
  std::vector<std::filesystem::path> files;
  std::string content = "rows";  ///< of the files, for messages
  RowSelection selection{};
  /// Leave out lines that are not JSON, rows that `read` refuses, and
  /// selected rows whose RowMaker throws Error.
  bool skip_invalid = false;
  RowOptions layout{};
  /// Above 0: rows are padded to the longest row, rounded up to a multiple of this.
  std::int64_t longest_multiple = 0;
  std::int64_t pad_id = 0;
  /// Checks the form of a row and takes out the values that its tokens need. `number` counts all rows of the
  /// files from 0. Throws Error naming file and row. Many threads may call `read` and the returned RowMaker.
  std::function<RowMaker(const JsonView& row, std::int64_t number)> read;
};

/// source.layout with the padding that longest_multiple asks for. `longest`: tokens of the longest row that
/// has a label.
RowOptions layout_for(const RowSource& source, std::int64_t longest);

/// The selected rows, all made at once and kept in memory. Every row of the files is checked, selected or
/// not. Throws the Errors of for_each_valid_row(), selected_rows() and RowDataset.
std::shared_ptr<const RowDataset> rows_in_memory(const RowSource& source);

}  // namespace nemocube

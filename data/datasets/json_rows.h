#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "data/json/json.h"

namespace nemocube {

/// Calls fn for each row of a file, in order. In *.jsonl and *.ndjson every line is a row; blank lines are
/// skipped. Other files hold a list of rows, an object whose list `data` holds the rows, or an object that is
/// the only row. The values live during the call only. Throws Error naming the file and the line that is not
/// JSON.
void for_each_row(const std::filesystem::path& path, const std::function<void(const JsonView&)>& fn);

/// The row's `id` (a string or an integer), or `fallback` when it has none.
std::string row_id(const JsonView& row, const std::string& fallback);

}  // namespace nemocube

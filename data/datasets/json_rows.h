#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "data/json/json.h"

namespace nemocube {

/// Calls fn for each row of a file, in order. In *.jsonl and *.ndjson every line is a row; blank lines are
/// skipped. Other files hold a list of rows, an object whose list `data` holds the rows, or an object that is
/// the only row. The values live during the call only. Throws Error naming the file and the line that is not
/// JSON.
void for_each_row(const std::filesystem::path& path, const std::function<void(const JsonView&)>& fn);

/// The same with the number of each row, counted from 0. With `skip_invalid`, rows for which fn throws Error and lines
/// that are not JSON are left out; one warning counts them and gives the first Error. Throws Error naming the file when
/// no row is left; `what` says what it should hold.
void for_each_valid_row(const std::filesystem::path& path, std::string_view what, bool skip_invalid,
                        const std::function<void(const JsonView&, std::int64_t)>& fn);

/// The row's `id` (a string or an integer), or `fallback` when it has none.
std::string row_id(const JsonView& row, const std::string& fallback);

}  // namespace nemocube

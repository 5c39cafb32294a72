#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/json/json.h"

namespace nemocube {

/// Whether every line of the file is a row: *.jsonl and *.ndjson.
bool has_rows_by_line(const std::filesystem::path& path);
/// Parses line `number`, counted from 1, of a file in JSON lines. Throws Error naming
/// the file and the line when it is not JSON.
Json parse_line(std::string_view line, const std::filesystem::path& path, std::int64_t number);
/// The name of this line in messages.
std::string line_place(std::int64_t number);
inline constexpr JsonLimits line_limits{};  ///< of a line

/// Calls fn for each row of a file, in order. In *.jsonl and *.ndjson every line is a row; blank lines are
/// skipped. Other files hold a list of rows, an object whose list `data` holds the rows, or an object that is
/// the only row. The values live during the call only. Returns the sum of the file. Throws Error naming the
/// file and the line that is not JSON.
FileSum for_each_row(const std::filesystem::path& path, const std::function<void(const JsonView&)>& fn);

/// Files, for messages: "a.jsonl", or "a.jsonl and 2 more".
std::string names_of(const std::vector<std::filesystem::path>& files);

/// Calls fn for each row of files, one file after another, with the number of the row, counted from 0 over
/// all files. With `skip_invalid`, rows for which fn throws Error and lines that are not JSON are left out;
/// one warning counts them and gives the first Error. Returns the files with their sums. Throws Error naming
/// the files when no row is left; `what` says what they should hold.
std::vector<DataFile> for_each_valid_row(const std::vector<std::filesystem::path>& files,
                                         std::string_view what, bool skip_invalid,
                                         const std::function<void(const JsonView&, std::int64_t)>& fn);

/// One warning that counts the rows that were left out and gives the Error of the first. Throws Error naming
/// the files when no row is left; `what` says what they should hold.
void report_skipped(const std::vector<std::filesystem::path>& files, std::string_view what, std::int64_t rows,
                    std::int64_t skipped, std::string_view first);

/// The row's `id` (a string or an integer), or `fallback` when it has none. `key`: the name of the id.
std::string row_id(const JsonView& row, const std::string& fallback, const std::string& key = "id");

}  // namespace nemocube

#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "data/json/json.h"

namespace nemocube {

/// Calls fn for each row of a file, in order: each line of *.jsonl and *.ndjson (blank lines are skipped); in
/// other files the elements of the list, or of the list `data` of the object, or the one object there is. The
/// values live during the call only. Throws Error naming the file, and the line, where it is not JSON.
void for_each_row(const std::filesystem::path& path, const std::function<void(const JsonView&)>& fn);

/// The row's `id` (a string or an integer), or `fallback` when it has none.
std::string row_id(const JsonView& row, const std::string& fallback);

}  // namespace nemocube

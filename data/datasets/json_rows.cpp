#include "data/datasets/json_rows.h"

#include <nlohmann/json.hpp>
#include <span>

#include "core/log.h"
#include "data/datasets/text.h"
#include "data/files/regular_file.h"

namespace nemocube {

namespace {

// Files are read whole. SQuAD has 30 MB; files of conversations can be larger.
constexpr JsonLimits limits{.max_bytes = std::int64_t{4} << 30};

using OnRow = std::function<void(const JsonView&)>;
/// Takes the Error of a line that is not JSON.
using OnBadLine = std::function<void(const Error&)>;

FileSum each_line(const std::filesystem::path& path, const OnRow& fn, const OnBadLine& bad) {
  return for_each_file_line(path, line_limits.max_bytes, [&](std::string_view line, std::int64_t number) {
    if (strip(line).empty()) return;
    Json value;
    try {
      value = parse_line(line, path, number);
    } catch (const Error& error) {
      return bad(error);
    }
    fn(JsonView(value, path.string(), line_place(number)));
  });
}

Json parse_document(const std::string& text, const std::filesystem::path& path) {
  try {
    return parse_json(text, path.string(), limits);
  } catch (const Error& e) {
    // Only the file's name decides between JSON and JSON lines, so the error says which names mean JSON
    // lines.
    const std::string_view what = e.what();
    if (what.find("expected end of input") != what.npos)
      fail(what, "; a JSON value on every line is read from files named .jsonl or .ndjson");
    if (what.find("not valid JSON at byte 1 ") != what.npos)
      fail(what, "; data sets are read from JSON and, in files named .jsonl or .ndjson, from JSON lines");
    throw;
  }
}

FileSum each_row(const std::filesystem::path& path, const OnRow& fn, const OnBadLine& bad) {
  if (has_rows_by_line(path)) return each_line(path, fn, bad);
  FileSum sum;
  const Json document = [&] {
    const std::string text = read_text_file(path, limits.max_bytes);
    sum.add(std::as_bytes(std::span(text)));
    return parse_document(text, path);
  }();
  const JsonView root(document, path.string());
  if (document.is_object() && !root.has("data")) {
    fn(root);
    return sum;
  }
  for (const JsonView& row : (document.is_object() ? root.at("data") : root).elements()) fn(row);
  return sum;
}

}  // namespace

bool has_rows_by_line(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson";
}

Json parse_line(std::string_view line, const std::filesystem::path& path, std::int64_t number) {
  return parse_json(line, cat(path.string(), ": ", line_place(number)), line_limits);
}

std::string line_place(std::int64_t number) { return cat("line ", number); }

FileSum for_each_row(const std::filesystem::path& path, const std::function<void(const JsonView&)>& fn) {
  return each_row(path, fn, [](const Error& error) { throw error; });
}

std::string names_of(const std::vector<std::filesystem::path>& files) {
  const std::string first = files.empty() ? "" : files.front().string();
  return files.size() < 2 ? first : cat(first, " and ", files.size() - 1, " more");
}

std::vector<DataFile> for_each_valid_row(const std::vector<std::filesystem::path>& files,
                                         std::string_view what, bool skip_invalid,
                                         const std::function<void(const JsonView&, std::int64_t)>& fn) {
  std::int64_t rows = 0, skipped = 0;
  std::string first;
  const auto skip = [&](const Error& error) {
    if (!skip_invalid) throw error;
    if (skipped++ == 0) first = error.what();
  };
  const OnRow on_row = [&](const JsonView& row) {
    const std::int64_t number = rows++;
    try {
      fn(row, number);
    } catch (const Error& error) {
      skip(error);
    }
  };
  const OnBadLine on_bad_line = [&](const Error& error) {
    ++rows;
    skip(error);
  };
  std::vector<DataFile> read;
  for (const std::filesystem::path& file : files) read.push_back({file, each_row(file, on_row, on_bad_line)});
  report_skipped(files, what, rows, skipped, first);
  return read;
}

void report_skipped(const std::vector<std::filesystem::path>& files, std::string_view what, std::int64_t rows,
                    std::int64_t skipped, std::string_view first) {
  const std::string told =
      skipped > 0 ? cat("skipped ", skipped, " of ", rows, " rows; the first: ", first) : "";
  require(rows > skipped, names_of(files), ": holds no ", what, told.empty() ? "" : "; ", told);
  if (skipped > 0) log_warning(names_of(files), ": ", told);
}

std::string row_id(const JsonView& row, const std::string& fallback, const std::string& key) {
  const auto id = row.find(key);
  if (!id) return fallback;
  if (id->value().is_number_integer()) return std::to_string(id->integer());
  if (!id->value().is_string()) id->refuse("a text or an integer");
  return std::string(id->string());
}

}  // namespace nemocube

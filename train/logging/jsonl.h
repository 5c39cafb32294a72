#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/logging/append_file.h"

/// Logs of one JSON object per line.
namespace nemocube {

/// Builds one object, keys in the order they are added. Numbers are the shortest decimals that read back as
/// the same double. JSON has no numbers that are not finite: they become the strings "NaN", "Infinity" and
/// "-Infinity", which Python's float() reads. Bytes that are not UTF-8 become U+FFFD.
class JsonLine {
 public:
  JsonLine& add(std::string_view key, double value);
  JsonLine& add(std::string_view key, std::int64_t value);
  JsonLine& add(std::string_view key, bool value);
  JsonLine& add(std::string_view key, std::string_view text);
  JsonLine& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  JsonLine& add(std::string_view key, const std::optional<double>& value);  ///< null when absent
  JsonLine& add(std::string_view key, std::span<const double> values);
  JsonLine& add(std::string_view key, std::span<const std::vector<std::int64_t>> rows);
  std::string text() const { return text_ + "}"; }  ///< without a line end

 private:
  void key(std::string_view name);
  std::string text_ = "{";
};

/// Appends lines to a file. Each line reaches the operating system in one write before append() returns, so a
/// crash loses no line and a reader never sees half a line. When the file was removed, renamed or replaced
/// since the last line, append() warns and writes to the file that has the name now, or to a new one.
class JsonlWriter {
 public:
  /// Creates the file and the folders above it. Throws Error naming the path and the reason.
  explicit JsonlWriter(const std::filesystem::path& path) : file_(path) {}

  /// Throws Error naming the path and the reason, such as a full disk or a file of another kind under the
  /// name of the log.
  void append(const JsonLine& line);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

/// The object in a line, without lists and objects deeper than `levels` below it; no object for a damaged
/// line. Parts that are left out take no memory, so that megabytes of damage, such as brackets that are never
/// closed, are noticed soon.
nlohmann::json log_fields(std::string_view line, int levels = 0);

inline constexpr std::int64_t most_line_bytes = std::int64_t{1} << 30;  ///< more than any log line has

/// Whether a file can be the log of a run: it starts like a log line, is empty or does not exist.
bool is_run_log(const std::filesystem::path& path);

/// Copies the lines of the log `from` whose "step" is below first_step to `to`, without damaged lines. `to`
/// appears in one rename. Returns how many lines were left out.
std::int64_t copy_log(const std::filesystem::path& from, const std::filesystem::path& to,
                      std::int64_t first_step);

/// The first unused name of path.1, path.2, ...
std::filesystem::path free_name(const std::filesystem::path& path);

/// Whether `newer` repeats all of `log`: for each line of `log`, `newer` has a line with the same step and
/// results, in the same order. Clocks and memory may differ.
bool is_repeated(const std::filesystem::path& log, const std::filesystem::path& newer);

/// Prepares a log for a run that starts at `first_step`, so that the file reads as one run:
///  - first_step > 0 (a resumed run): lines whose "step" is first_step or more, and lines that are damaged,
///    are dropped; the file is replaced in one rename. Returns how many lines were dropped.
///  - first_step = 0 (a new run): an existing log is kept as path.1, path.2, ... Returns 0.
std::int64_t start_log(const std::filesystem::path& path, std::int64_t first_step);

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// Logs of one JSON object per line.
namespace nemocube {

/// Builds one object, keys in the order they are added. Numbers are the shortest decimals that read back as
/// the same double. JSON has no number for what is not finite: these become the strings "NaN", "Infinity" and
/// "-Infinity", which Python's float() reads like a number. Bytes that are no UTF-8 become U+FFFD.
class JsonLine {
 public:
  JsonLine& add(std::string_view key, double value);
  JsonLine& add(std::string_view key, std::int64_t value);
  JsonLine& add(std::string_view key, bool value);
  JsonLine& add(std::string_view key, std::string_view text);
  JsonLine& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  JsonLine& add(std::string_view key, const std::optional<double>& value);  ///< null when absent
  std::string text() const { return text_ + "}"; }                          ///< without a line end

 private:
  void key(std::string_view name);
  std::string text_ = "{";
};

/// Appends lines to a file. Each line reaches the operating system in one write before append() returns, so a
/// crash loses none and a reader never sees half of one. A file that is removed, renamed or replaced between
/// two lines is noticed: the next line goes, with a warning, to what has the name then.
class JsonlWriter {
 public:
  /// Creates the file and the folders above it. Throws Error naming the path and the reason.
  explicit JsonlWriter(const std::filesystem::path& path);
  ~JsonlWriter();
  JsonlWriter(JsonlWriter&& other) noexcept;
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;
  JsonlWriter& operator=(JsonlWriter&&) = delete;

  /// Throws Error naming the path and the reason, such as a full disk or a file of another kind put in the
  /// place of the log.
  void append(const JsonLine& line);
  const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  std::filesystem::path path_;
  int file_ = -1;
};

/// Whether a file can be the log of a run: it starts like a line of one, or is empty or absent.
bool is_run_log(const std::filesystem::path& path);

/// Writes the lines of the log `from` whose "step" is below first_step to `to`, in one rename; damaged lines are
/// left out. Returns how many lines that leaves out.
std::int64_t copy_log(const std::filesystem::path& from, const std::filesystem::path& to,
                      std::int64_t first_step);

/// A name beside `path` that is free: path.1, path.2, ...
std::filesystem::path free_name(const std::filesystem::path& path);

/// Whether `log` says nothing that `newer` does not say: each of its lines has there, in order, a line with the
/// same step and results. Clocks and memory may differ.
bool is_repeated(const std::filesystem::path& log, const std::filesystem::path& newer);

/// Prepares a log for a run that starts at `first_step`, so that the file reads as one run:
///  - first_step > 0 (a resumed run): lines whose "step" is first_step or more, and lines that are damaged,
///    are dropped; the file is replaced in one rename. Returns how many lines went.
///  - first_step = 0 (a new run): a log that is there already is kept as path.1, path.2, ... Returns 0.
std::int64_t start_log(const std::filesystem::path& path, std::int64_t first_step);

}  // namespace nemocube

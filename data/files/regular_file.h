#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "data/files/file_sum.h"

/// Reading of untrusted files. Only regular files and symbolic links to them are read: a FIFO could make the
/// program wait, and a device could be read without end.
namespace nemocube {

/// A regular file, open for reading.
class RegularFile {
 public:
  /// Never waits. Throws Error naming the path when the file cannot be opened or is not a regular file:
  ///     config.json: want a regular file, got a FIFO
  explicit RegularFile(std::filesystem::path path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }  ///< in bytes, at the time of opening
  /// Reads the next bytes into `to` and returns their number: fewer than `bytes` only at the end of the file.
  /// Throws Error naming the path.
  std::size_t read(char* to, std::size_t bytes);
  /// Reads the bytes from `begin` on, at any state of read(). Many threads may call this at once. Throws
  /// Error naming the path, also when the file has become shorter.
  void read_at(std::int64_t begin, std::span<std::byte> to) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

/// Contents of a regular file. Throws Error naming the file when it cannot be read or exceeds max_bytes.
std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes);

/// Calls fn(line, number) for each line of a regular file, without its line feed; numbers begin with 1. The
/// line lives during the call only. Returns the sum of the file (data/files/file_sum.h). Throws Error naming
/// file and line when a line exceeds max_line_bytes.
FileSum for_each_file_line(const std::filesystem::path& path, std::int64_t max_line_bytes,
                           const std::function<void(std::string_view, std::int64_t)>& fn);

}  // namespace nemocube

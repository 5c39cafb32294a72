#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/files/file_sum.h"
#include "data/files/on_bytes.h"
#include "data/files/regular_file.h"

namespace nemocube {

/// Where the lines of a file are. Blank lines, which hold white space alone, are left out; `line` below
/// counts all other lines from 0. The index takes 4 bytes of memory for each line, blank ones too. Many
/// threads may call const members at once.
class LineIndex {
 public:
  /// Reads the file once. Throws Error naming the file, and the line that has more than max_line_bytes.
  LineIndex(const std::filesystem::path& path, std::int64_t max_line_bytes, const OnBytes& on_bytes = {});

  const std::filesystem::path& path() const { return file_.path(); }
  std::int64_t bytes() const { return file_.size(); }
  const FileSum& sum() const { return sum_; }  ///< of the file, as it was read
  std::int64_t size() const { return static_cast<std::int64_t>(lengths_.size()); }
  /// Text of a line without its line feed. Throws Error naming the file when the file has become shorter.
  std::string text(std::int64_t line) const;
  /// Bytes of a line, and of blank lines up to the next one.
  std::int64_t length(std::int64_t line) const { return lengths_[static_cast<std::size_t>(line)]; }
  /// The number of a line among all lines of the file, from 1.
  std::int64_t number(std::int64_t line) const;

 private:
  RegularFile file_;
  FileSum sum_;
  std::vector<std::uint32_t> lengths_;       ///< of each line, with the blank lines behind it
  std::vector<std::int64_t> begins_;         ///< in the file, of every 256th line
  std::vector<std::uint32_t> blank_before_;  ///< for each blank line, the line behind it
};

}  // namespace nemocube

#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace nemocube {

class RegularFile;  // data/files/regular_file.h

/// Size and CRC (crc32c()) of a file's contents, to compare a file with the bytes that were written to it, or
/// with the file of another rank.
struct FileSum {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  void add(std::span<const std::byte> more);  ///< after the bytes so far
  friend bool operator==(const FileSum&, const FileSum&) = default;
};
using FileSums = std::map<std::string, FileSum>;  ///< by path, relative to a directory known from the context

/// "12 bytes, sum 345"
std::string to_string(const FileSum& sum);

/// For a file that may be too large to be read whole: its size, and the CRC of 16 pieces of 64 KiB that are
/// spread evenly from the first byte to the last; of a file up to 1 MiB the CRC of all. Throws Error as
/// RegularFile does.
FileSum sampled_sum(const RegularFile& file);

}  // namespace nemocube

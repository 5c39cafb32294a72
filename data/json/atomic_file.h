#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// Files that appear whole or not at all.
namespace nemocube {

/// What a file holds, to be compared with what was written. The CRC is crc32c().
struct FileSum {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};
using FileSums = std::map<std::string, FileSum>;  ///< by path, relative to a directory that both sides know

/// Writes to a temporary name in the directory of `target`; commit() makes the bytes durable and gives them
/// the final name, replacing an older file. Without commit() nothing remains. Errors name the target.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  std::int64_t written() const { return sum_.bytes; }
  const FileSum& sum() const { return sum_; }  ///< of what has been written so far
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  FileSum sum_;
};

FileSum write_file_atomically(const std::filesystem::path& target, std::string_view text);
/// Reads a regular file to its end. Throws Error naming it.
FileSum sum_of_file(const std::filesystem::path& path);
/// Throws Error unless a file can be put in place under this name: its directory exists, and nothing but a
/// regular file has the name (a rename would destroy a device as easily as a file). For checks before long
/// work.
void check_output_place(const std::filesystem::path& target);
/// Whether a path leads to the file or directory that is open as `fd`: not when it was removed, renamed or
/// replaced since.
bool is_file_at(int fd, const std::filesystem::path& path);
/// Makes renames inside a directory durable.
void sync_directory(const std::filesystem::path& directory);
/// A name beside `target`, hidden and different for every call, for things that will be renamed to it.
std::filesystem::path temporary_sibling(const std::filesystem::path& target);
/// The inverse for a name without its directory: what temporary_sibling() was asked for; nothing for other
/// names.
std::optional<std::string> target_of_temporary(std::string_view name);

}  // namespace nemocube

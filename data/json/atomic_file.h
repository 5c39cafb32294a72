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

/// Size and CRC (crc32c()) of a file's contents, to compare a file with the bytes that were written to it.
struct FileSum {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};
using FileSums = std::map<std::string, FileSum>;  ///< by path, relative to a directory known from the context

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
  const FileSum& sum() const { return sum_; }  ///< of the bytes written so far
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  FileSum sum_;
};

FileSum write_file_atomically(const std::filesystem::path& target, std::string_view text);
/// The sum of a regular file, which is read to its end. Throws Error naming the file.
FileSum sum_of_file(const std::filesystem::path& path);
/// Throws Error unless AtomicFile can use this target: its directory exists, and the name is free or belongs
/// to a regular file (a rename would also replace a device). Meant as a check before long work.
void check_output_place(const std::filesystem::path& target);
/// Whether a path still leads to the file or directory that is open as `fd`: false when that was removed,
/// renamed or replaced.
bool is_file_at(int fd, const std::filesystem::path& path);
/// Makes renames inside a directory durable.
void sync_directory(const std::filesystem::path& directory);
/// A hidden name beside `target`, different for every call, for a file or directory to be renamed to
/// `target`.
std::filesystem::path temporary_sibling(const std::filesystem::path& target);
/// The inverse of temporary_sibling(), for names without their directory; nothing for other names.
std::optional<std::string> target_of_temporary(std::string_view name);

}  // namespace nemocube

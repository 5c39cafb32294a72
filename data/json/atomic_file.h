#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

/// Files that appear whole or not at all.
namespace nemocube {

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
  std::int64_t written() const { return written_; }
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  std::int64_t written_ = 0;
};

void write_file_atomically(const std::filesystem::path& target, std::string_view text);
/// Throws Error unless a file can be put in place under this name: its directory exists, and nothing but a
/// regular file has the name (a rename would destroy a device as easily as a file). For checks before long
/// work.
void check_output_place(const std::filesystem::path& target);
/// Makes renames inside a directory durable.
void sync_directory(const std::filesystem::path& directory);
/// A name beside `target`, hidden and different for every call, for things that will be renamed to it.
std::filesystem::path temporary_sibling(const std::filesystem::path& target);

}  // namespace nemocube

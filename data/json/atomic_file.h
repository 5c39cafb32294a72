#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/file_sum.h"
#include "parallel/comm/communicator.h"

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
  std::int64_t written() const { return sum_.bytes; }
  const FileSum& sum() const { return sum_; }  ///< of the bytes written so far
  /// The temporary name, under which a FilePart may write too, after the bytes written here.
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  FileSum sum_;
};

/// Writes parts of a file that an AtomicFile of some rank has created. Each rank opens the file for itself
/// and writes its own parts; sync() makes them durable. Errors name the target.
class FilePart {
 public:
  FilePart(const std::filesystem::path& temporary, std::filesystem::path target);
  ~FilePart();
  FilePart(const FilePart&) = delete;
  FilePart& operator=(const FilePart&) = delete;

  /// Bytes that were written one after another.
  struct Segment {
    std::int64_t begin = 0;  ///< byte of the file
    FileSum sum;
    std::int64_t end() const { return begin + sum.bytes; }
  };
  void seek(std::int64_t byte);  ///< where the next write goes
  std::int64_t position() const { return position_; }
  void write(std::span<const std::byte> bytes);
  void sync();
  const std::vector<Segment>& segments() const { return segments_; }  ///< in the order written

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  std::filesystem::path target_;
  int fd_ = -1;
  std::int64_t position_ = 0;
  std::vector<Segment> segments_;
};

/// Writes a whole file. The ranks of `group` call this function together and with the same text: rank 0
/// writes, all return the sum or throw its Error.
FileSum write_file_atomically(const std::filesystem::path& target, std::string_view text,
                              Communicator* group = nullptr);
/// The same for the file `name` in a directory that exists; `name` may have folders in front, which are
/// created.
FileSum write_file_in(const std::filesystem::path& directory, const std::string& name, std::string_view text,
                      Communicator* group = nullptr);
FileSum sum_of(std::string_view text);
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

#include "data/json/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace nemocube {
namespace {
std::string system_message(int code) { return std::generic_category().message(code); }

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}
}  // namespace

std::filesystem::path temporary_sibling(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return directory_of(target) / cat(".", target.filename().string(), ".", ::getpid(), ".", counter++, ".tmp");
}

void check_output_place(const std::filesystem::path& target) {
  require(!target.empty(), "the name of the file to write is empty");
  std::error_code error;
  const std::filesystem::path directory = directory_of(target);
  require(std::filesystem::is_directory(directory, error), target.string(),
          ": cannot create: ", system_message(std::filesystem::exists(directory, error) ? ENOTDIR : ENOENT));
  const auto status = std::filesystem::status(target, error);
  require(
      target.has_filename() && (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)),
      target.string(), ": cannot write: exists and is not a regular file");
}

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  check_output_place(target_);
  temporary_ = temporary_sibling(target_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with_errno("create");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail_with_errno(const char* what) const {
  const int code = errno;
  fail(target_.string(), ": cannot ", what, ": ", system_message(code), " (after ", written_, " bytes)");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  expect(fd_ >= 0, "write to a committed file");
  constexpr std::size_t most = std::size_t{1} << 30;  // some systems refuse more in one call
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_, bytes.data(), std::min(bytes.size(), most));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno("write");
    written_ += done;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void AtomicFile::commit() {
  expect(fd_ >= 0, "second commit of a file");
  if (::fsync(fd_) != 0) fail_with_errno("sync");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_with_errno("rename");
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail_with_errno("close");
  sync_directory(directory_of(target_));
}

void write_file_atomically(const std::filesystem::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write(text);
  file.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(fd >= 0, directory.string(), ": cannot open: ", system_message(errno));
  const int code = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync a directory and say so.
  require(code == 0 || code == EINVAL || code == ENOTSUP, directory.string(),
          ": cannot sync: ", system_message(code));
}

}  // namespace nemocube

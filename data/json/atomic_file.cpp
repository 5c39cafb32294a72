#include "data/json/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "data/files/crc32c.h"
#include "data/files/open_file.h"
#include "data/files/regular_file.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {
// Bytes of one read or write: few enough that they are still in the cache when the CRC is computed.
constexpr std::size_t piece = std::size_t{1} << 20;

std::string system_message(int code) { return std::generic_category().message(code); }

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}
}  // namespace

std::filesystem::path temporary_sibling(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return directory_of(target) / cat(".", target.filename().string(), ".", ::getpid(), ".", counter++, ".tmp");
}

std::optional<std::string> target_of_temporary(std::string_view name) {
  constexpr std::string_view ending = ".tmp";
  // The dot in front and that of the ending are two.
  if (name.size() <= ending.size() || !name.starts_with('.') || !name.ends_with(ending)) return std::nullopt;
  name.remove_prefix(1);
  name.remove_suffix(ending.size());
  for (int number = 0; number < 2; ++number) {  // the counter, then the process
    const std::size_t dot = name.rfind('.');
    if (dot == name.npos || dot + 1 == name.size() ||
        name.find_first_not_of("0123456789", dot + 1) != name.npos)
      return std::nullopt;
    name = name.substr(0, dot);
  }
  if (name.empty()) return std::nullopt;
  return std::string(name);
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
  fd_ = open_file(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with_errno("create");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail_with_errno(const char* what) const {
  const int code = errno;
  fail(target_.string(), ": cannot ", what, ": ", open_message(code), " (after ", sum_.bytes, " bytes)");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  expect(fd_ >= 0, "write to a committed file");
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_, bytes.data(), std::min(bytes.size(), piece));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno("write");
    sum_.add(bytes.first(static_cast<std::size_t>(done)));
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

FilePart::FilePart(const std::filesystem::path& temporary, std::filesystem::path target)
    : target_(std::move(target)), fd_(::open(temporary.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (fd_ < 0) fail_with_errno("open");
}

FilePart::~FilePart() {
  if (fd_ >= 0) ::close(fd_);
}

void FilePart::fail_with_errno(const char* what) const {
  const int code = errno;
  fail(target_.string(), ": cannot ", what, ": ", open_message(code), " (after ", position_, " bytes)");
}

void FilePart::seek(std::int64_t byte) { position_ = byte; }

void FilePart::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (segments_.empty() || segments_.back().end() != position_) segments_.push_back({position_, {}});
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd_, bytes.data(), std::min(bytes.size(), piece), position_);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno("write");
    segments_.back().sum.add(bytes.first(static_cast<std::size_t>(done)));
    position_ += done;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void FilePart::sync() {
  if (::fsync(fd_) != 0) fail_with_errno("sync");
}

FileSum write_file_atomically(const std::filesystem::path& target, std::string_view text,
                              Communicator* group) {
  on_rank_0(group, [&] {
    AtomicFile file(target);
    file.write(text);
    file.commit();
  });
  return sum_of(text);
}

FileSum write_file_in(const std::filesystem::path& directory, const std::string& name, std::string_view text,
                      Communicator* group) {
  const std::filesystem::path target = directory / name;
  on_rank_0(group, [&] {
    std::filesystem::path folder = directory;
    for (const auto& step : std::filesystem::path(name).parent_path()) {
      std::error_code error;
      const bool created = std::filesystem::create_directory(folder / step, error);
      require(!error, (folder / step).string(), ": cannot be created: ", error.message());
      if (created) sync_directory(folder);
      folder /= step;
    }
  });
  return write_file_atomically(target, text, group);
}

FileSum sum_of(std::string_view text) {
  FileSum sum;
  sum.add(std::as_bytes(std::span(text)));
  return sum;
}

FileSum sum_of_file(const std::filesystem::path& path) {
  RegularFile file(path);
  FileSum sum;
  std::vector<char> buffer(piece);
  for (std::size_t got = piece; got == piece;) {
    got = file.read(buffer.data(), piece);
    sum.add(std::as_bytes(std::span(buffer).first(got)));
  }
  return sum;
}

bool is_file_at(int fd, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
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

#include "train/look/watch/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::size_t mark_bytes = 256;

struct Descriptor {
  explicit Descriptor(int descriptor) : number(descriptor) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int number;
};

// Fewer bytes than asked for where the file has become shorter meanwhile.
std::string bytes_at(int file, std::int64_t begin, std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t got = 0;
  while (got < count) {
    const ssize_t n = ::pread(file, bytes.data() + got, count - got, begin + static_cast<std::int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace

LogTail::LogTail(std::filesystem::path path, std::int64_t most_history)
    : path_(std::move(path)), most_history_(most_history) {}

bool LogTail::poll(const std::function<void(std::string_view)>& on_line,
                   const std::function<void()>& on_restart) {
  // O_NONBLOCK: opening a FIFO does not wait.
  const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int code = errno;
  if (file.number < 0 && (code == ENOENT || code == ESTALE)) {  // ESTALE: NFS, removed this moment
    if (std::exchange(offset_, -1) >= 0) on_restart();
    return false;
  }
  require(file.number >= 0, path_.string(), ": cannot be read: ", std::strerror(code));
  struct stat found {};
  if (::fstat(file.number, &found) != 0) return false;
  require(S_ISREG(found.st_mode), path_.string(), ": want a log, which is a regular file");
  const Identity now{found.st_dev, found.st_ino};
  if (!continues(file.number, found.st_size, now)) {
    if (offset_ >= 0) on_restart();
    begin(found.st_size, now);
  }
  return read_piece(file.number, found.st_size, on_line);
}

bool LogTail::continues(int file, std::int64_t size, const Identity& now) const {
  if (offset_ < 0 || !(now == identity_) || size < offset_) return false;
  const auto mark = static_cast<std::int64_t>(before_.size());
  return bytes_at(file, offset_ - mark, before_.size()) == before_;
}

void LogTail::begin(std::int64_t size, const Identity& now) {
  identity_ = now;
  offset_ = std::max<std::int64_t>(size - most_history_, 0);
  skipping_ = offset_ > 0;  // the place may lie within a line
  before_.clear();
  unfinished_.clear();
}

bool LogTail::read_piece(int file, std::int64_t size, const std::function<void(std::string_view)>& on_line) {
  const auto left = static_cast<std::size_t>(size - offset_);
  const std::string bytes = bytes_at(file, offset_, std::min(left, piece_bytes));
  offset_ += static_cast<std::int64_t>(bytes.size());
  before_ += bytes;
  if (before_.size() > mark_bytes) before_.erase(0, before_.size() - mark_bytes);
  take(bytes, on_line);
  return !bytes.empty() && offset_ < size;
}

void LogTail::take(std::string_view bytes, const std::function<void(std::string_view)>& on_line) {
  for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos;) {
    const std::string_view rest = bytes.substr(0, end);
    if (unfinished_.empty() && !skipping_) {
      on_line(rest);
    } else if (!std::exchange(skipping_, false)) {
      on_line(unfinished_.append(rest));
    }
    unfinished_.clear();
    bytes.remove_prefix(end + 1);
  }
  if (skipping_) return;
  unfinished_ += bytes;
  if (unfinished_.size() <= most_line) return;
  unfinished_.clear();
  skipping_ = true;
}

}  // namespace nemocube

#include "train/logging/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "data/files/open_file.h"
#include "data/json/atomic_file.h"

namespace nemocube {

AppendFile::AppendFile(const std::filesystem::path& path) : path_(path) { open(); }

void AppendFile::open() {
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  require(!error, path_.string(), ": cannot create the folder of this log: ", error.message());
  // O_NONBLOCK: opening a FIFO does not wait for a reader, and fails.
  file_ = open_file(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  require(file_ >= 0, path_.string(), ": cannot open this log: ", open_message(errno));
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, path_.string(), ": cannot write: ", n < 0 ? std::strerror(errno) : "nothing was written");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

bool AppendFile::has_its_name() const { return is_file_at(file_, path_); }

void AppendFile::reopen() {
  ::close(std::exchange(file_, -1));
  open();
}

}  // namespace nemocube

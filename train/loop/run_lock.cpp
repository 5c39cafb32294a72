#include "train/loop/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/log.h"

namespace nemocube {

RunLock::RunLock(const std::filesystem::path& directory)
    : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) return;
  held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  if (held_) return;
  const int code = errno;
  if (code == EWOULDBLOCK) {
    ::close(fd_);
    fail(directory.string(), ": another run is at work here; wait for its end or name another checkpoint.",
         "checkpoint_dir");
  }
  log_debug(directory.string(), ": cannot be locked: ", std::generic_category().message(code));
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace nemocube

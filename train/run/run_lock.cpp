#include "train/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/log.h"
#include "data/json/atomic_file.h"

namespace nemocube {

namespace fs = std::filesystem;

RunLock::RunLock(fs::path directory, const char* key) : directory_(std::move(directory)), key_(key) {
  acquire();
}

RunLock::~RunLock() {
  remove_created();
  if (fd_ >= 0) ::close(fd_);
}

bool RunLock::in_place() const { return is_file_at(fd_, directory_); }

void RunLock::renew_if_lost() {
  if (fd_ < 0 || in_place()) return;
  log_warning(
      directory_.string(),
      ": was removed, renamed or replaced while the run goes on; what the run writes from here on goes "
      "into a new directory of this name");
  acquire();
}

void RunLock::create() {
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path p = fs::absolute(directory_, error).lexically_normal();
       p.has_relative_path() && !fs::exists(p, error); p = p.parent_path())
    missing.push_back(p);
  created_.insert(created_.end(), missing.rbegin(), missing.rend());
  error.clear();
  fs::create_directories(directory_, error);
  if (error == std::errc::file_exists || (!error && !fs::is_directory(directory_)))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error) remove_created();
  require(!error, key_, ": cannot create the directory ", directory_.string(), ": ", error.message());
}

void RunLock::remove_created() {
  for (; !created_.empty(); created_.pop_back()) ::rmdir(created_.back().c_str());  // fails where in use
}

// Another process may remove the directory between its creation and the lock: a run that fails before its
// first step does so. Then the locked directory no longer has the name.
void RunLock::acquire() {
  do {
    if (fd_ >= 0) ::close(fd_);
    held_ = false;
    create();
    fd_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) {
      log_debug(directory_.string(), ": cannot be locked: ", std::generic_category().message(errno));
      return;
    }
    held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (held_) continue;
    if (const int code = errno; code != EWOULDBLOCK) {
      log_debug(directory_.string(), ": cannot be locked: ", std::generic_category().message(code));
      return;
    }
    ::close(std::exchange(fd_, -1));
    fail(directory_.string(), ": another run is at work here; wait for its end or name another ", key_);
  } while (!in_place());
}

// A line: "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", device in hexadecimal, then the inode.
bool is_run_locked(const std::filesystem::path& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) return false;
  std::array<char, 64> place;
  std::snprintf(place.data(), place.size(), " %02x:%02x:%ju ", major(status.st_dev), minor(status.st_dev),
                static_cast<std::uintmax_t>(status.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);)
    if (line.find(" FLOCK ") != line.npos && line.find(place.data()) != line.npos) return true;
  return false;
}

}  // namespace nemocube

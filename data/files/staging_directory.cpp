#include "data/files/staging_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <vector>

#include "core/error.h"
#include "data/json/atomic_file.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

// Locks a directory; -1 when that fails, also on file systems without locks, where leftovers therefore stay.
int lock_directory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  return -1;
}

void remove_leftovers(const fs::path& target) {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(target.parent_path(), ignored))
    if (target_of_temporary(entry.path().filename().string()) == target.filename().string())
      left.push_back(entry.path());
  for (const fs::path& path : left)
    if (const int lock = lock_directory(path); lock >= 0) {
      fs::remove_all(path, ignored);
      ::close(lock);
    }
}

}  // namespace

StagingDirectory::StagingDirectory(fs::path target)
    : target_(std::move(target)), path_(temporary_sibling(target_)) {
  remove_leftovers(target_);
  std::error_code error;
  fs::create_directories(path_, error);
  require(!error, target_.string(), ": cannot create: ", error.message());
  lock_ = lock_directory(path_);
}

StagingDirectory::~StagingDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void StagingDirectory::publish() {
  expect(!path_.empty(), target_.string(), ": published twice");
  sync_directory(path_);
  std::error_code error;
  fs::rename(path_, target_, error);
  require(!error, target_.string(), ": cannot be put in place: ", error.message());
  path_.clear();
  sync_directory(target_.parent_path());
}

}  // namespace nemocube

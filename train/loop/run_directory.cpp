#include "train/loop/run_directory.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"
#include "train/loop/run_lock.h"

namespace nemocube {

namespace fs = std::filesystem;

void check_run_directory(const fs::path& directory) {
  std::error_code error;
  fs::path existing = fs::absolute(directory, error);
  while (!fs::exists(existing, error) && existing != existing.root_path()) {
    require(!fs::is_symlink(fs::symlink_status(existing, error)), "checkpoint.checkpoint_dir: '",
            directory.string(), "': '", existing.string(), "' is a link to nothing");
    existing = existing.parent_path();
  }
  require(fs::is_directory(existing, error), "checkpoint.checkpoint_dir: '", directory.string(), "': '",
          existing.string(), "' is not a directory");
  require(::access(existing.c_str(), R_OK | W_OK | X_OK) == 0, "checkpoint.checkpoint_dir: '",
          directory.string(), "': nothing can be written in '", existing.string(),
          "': ", std::generic_category().message(errno));
  if (existing == fs::absolute(directory, error)) const RunLock taken(existing);
}

}  // namespace nemocube

#include "train/run/run_directory.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "core/error.h"
#include "data/files/link.h"
#include "train/run/run_lock.h"

namespace nemocube {

namespace fs = std::filesystem;

namespace {

/// Root may "write" in folders where nothing can be made: access() looks at owners and modes alone.
void check_file_system(const fs::path& folder, const std::string& where) {
  struct statvfs flags {};
  require(::statvfs(folder.c_str(), &flags) != 0 || (flags.f_flag & ST_RDONLY) == 0, where, folder.string(),
          "' is on a file system that is mounted read-only");
  struct statfs kind {};
  if (::statfs(folder.c_str(), &kind) != 0) return;
  switch (static_cast<std::uint32_t>(kind.f_type)) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case DEVPTS_SUPER_MAGIC:
      fail(where, folder.string(), "' is on a file system of the kernel, which holds no files of programs");
    default:
      break;
  }
}

}  // namespace

std::string kind_of_links(const fs::path& directory) {
  std::error_code error;
  fs::path existing = fs::absolute(directory, error);
  while (!fs::exists(existing, error) && existing != existing.root_path()) existing = existing.parent_path();
  return has_symbolic_links(existing)
             ? "LATEST and LOWEST_VAL are symbolic links"
             : cat("LATEST and LOWEST_VAL are files with the name of a checkpoint: the file system of ",
                   existing.string(), " has no symbolic links");
}

void check_folder_for_files(const std::string& key, const fs::path& directory) {
  std::error_code error;
  fs::path existing = fs::absolute(directory, error);
  while (!fs::exists(existing, error) && existing != existing.root_path()) {
    require(!fs::is_symlink(fs::symlink_status(existing, error)), key, ": '", directory.string(), "': '",
            existing.string(), "' is a link to nothing");
    existing = existing.parent_path();
  }
  require(fs::is_directory(existing, error), key, ": '", directory.string(), "': '", existing.string(),
          "' is not a directory");
  if (::access(existing.c_str(), R_OK | W_OK | X_OK) != 0)
    fail(key, ": '", directory.string(), "': nothing can be written in '", existing.string(),
         "': ", std::generic_category().message(errno));
  check_file_system(existing, cat(key, ": '", directory.string(), "': '"));
}

void check_run_directory(const fs::path& directory) {
  check_folder_for_files("checkpoint.checkpoint_dir", directory);
  std::error_code error;
  if (fs::is_directory(directory, error)) const RunLock taken(fs::absolute(directory, error));
}

}  // namespace nemocube

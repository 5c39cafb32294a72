#pragma once
#include <filesystem>
#include <vector>

namespace nemocube {

/// Allows one run at a time in a directory. The lock is on the directory itself: it leaves no file
/// behind and ends with the process, also after a crash. On file systems without such locks (NFS, some of
/// Lustre) it has no effect.
class RunLock {
 public:
  /// Creates the directory if necessary and locks it. Throws Error naming the
  /// directory when it cannot be created or when another process holds the lock.
  /// `key`: the recipe's key that names the directory.
  explicit RunLock(std::filesystem::path directory, const char* key = "checkpoint.checkpoint_dir");
  /// Removes the directories that this object created, if they are empty.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  bool held() const { return held_; }
  /// Creates and locks the directory anew, with a warning, when it was removed, renamed or replaced since.
  /// Throws Error like the constructor.
  void renew_if_lost();

 private:
  void create();
  void remove_created();
  void acquire();
  bool in_place() const;
  std::filesystem::path directory_;
  const char* key_;
  std::vector<std::filesystem::path> created_;  // the outermost first
  int fd_ = -1;
  bool held_ = false;
};

/// Whether a process of this machine holds the RunLock of the directory, as far as /proc/locks says. Takes no
/// lock, so no run is ever refused because of this call.
bool is_run_locked(const std::filesystem::path& directory);

}  // namespace nemocube

#pragma once
#include <filesystem>

namespace nemocube {

/// One run at a time in a checkpoint directory: a lock on the directory itself, which leaves no trace and ends
/// with the process however that ends. File systems without such locks (NFS, some of Lustre) keep nobody out.
class RunLock {
 public:
  /// Throws Error when another process holds the lock. A directory that cannot be opened is not locked.
  explicit RunLock(const std::filesystem::path& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  bool held() const { return held_; }

 private:
  int fd_ = -1;
  bool held_ = false;
};

}  // namespace nemocube

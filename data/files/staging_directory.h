#pragma once
#include <filesystem>

namespace nemocube {

/// A directory that appears whole or not at all: a hidden one beside `target` (temporary_sibling()), to be
/// filled and then renamed. It disappears with the object unless it was published. A lock on it says that
/// its process is at work, so what a killed process left is known from what another one writes.
class StagingDirectory {
 public:
  /// Removes what killed processes left for the same target. Creates the directories above. Throws Error
  /// naming the target.
  explicit StagingDirectory(std::filesystem::path target);
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Renames it to the target, which must be absent or an empty directory, and makes that durable. What is
  /// inside must be durable already (see AtomicFile).
  void publish();

 private:
  std::filesystem::path target_, path_;  // path_ is empty once published
  int lock_ = -1;
};

}  // namespace nemocube

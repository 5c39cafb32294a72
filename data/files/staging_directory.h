#pragma once
#include <filesystem>

namespace nemocube {

/// A directory that appears whole or not at all. The object creates a hidden directory beside `target`
/// (temporary_sibling()); the caller fills the directory, and publish() renames it. The destructor removes a
/// directory that was not published. While its process runs, the directory is locked, so leftovers of a
/// killed process can be told from a directory that another process is filling.
class StagingDirectory {
 public:
  /// Removes leftovers of killed processes for the same target, and creates missing parent directories.
  /// Throws Error naming the target.
  explicit StagingDirectory(std::filesystem::path target);
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Renames the directory to the target, which must be absent or an empty directory, and makes the rename
  /// durable. The files inside must be durable already (see AtomicFile).
  void publish();

 private:
  std::filesystem::path target_, path_;  // path_ is empty once published
  int lock_ = -1;
};

}  // namespace nemocube

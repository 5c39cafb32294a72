#pragma once
#include <filesystem>

#include "train/run/run_lock.h"

namespace nemocube {

/// Keeps a folder of event files for one run: TensorBoard would draw the points of two runs as one curve. A
/// run is known by its checkpoint directory, so a resumed run is the same one. The file nemocube_run.json in
/// the folder names the directory:
///     {"checkpoint_dir": "/runs/a"}, or a relative path where the folder lies in it, so that both can be
///     moved together
class TensorboardFolder {
 public:
  static constexpr const char* file_name = "nemocube_run.json";

  /// Locks the folder (RunLock). Throws Error naming tensorboard.tensorboard_dir where another run is at work
  /// there, or was: the folder names another checkpoint directory, which exists. For a named directory that
  /// is gone, a warning is logged.
  TensorboardFolder(std::filesystem::path folder, std::filesystem::path checkpoint_dir);

  /// Writes the file, unless it already names this run.
  void claim() const;

 private:
  std::filesystem::path folder_, checkpoint_dir_;
  RunLock lock_;
};

}  // namespace nemocube

#pragma once
#include <filesystem>

#include "train/run/run_lock.h"

namespace nemocube {

/// The folder of event files as that of one run: TensorBoard would draw the points of two as one curve. A run
/// is its checkpoint directory, so that a resumed run is the same one. The file nemocube_run.json in the
/// folder names it:
///     {"checkpoint_dir": "/runs/a"}, or a relative path where the folder lies in it, so that both can be
///     moved together
class TensorboardFolder {
 public:
  static constexpr const char* file_name = "nemocube_run.json";

  /// Locks the folder (RunLock). Throws Error naming tensorboard.tensorboard_dir where another run is at work
  /// there, or has been: its checkpoint directory is named in the folder, is there, and is another one. One
  /// that is gone gives a warning.
  TensorboardFolder(std::filesystem::path folder, std::filesystem::path checkpoint_dir);

  /// Writes the file, unless it is there and names this run.
  void claim() const;

 private:
  std::filesystem::path folder_, checkpoint_dir_;
  RunLock lock_;
};

}  // namespace nemocube

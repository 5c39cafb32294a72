#pragma once
#include <filesystem>

namespace nemocube {

struct CheckpointInspection {
  std::filesystem::path checkpoint;  ///< or the directory of a run
  bool tensors = false;              ///< lists each of them
  bool verify = true;                ///< reads all files and compares them with their checksums
  bool json = false;
};

/// Prints what a checkpoint holds. Throws Error where something is wrong with it, after naming all that is on
/// standard output.
void inspect_checkpoint(const CheckpointInspection& options);

}  // namespace nemocube

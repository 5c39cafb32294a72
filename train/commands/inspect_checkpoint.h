#pragma once
#include <filesystem>

namespace nemocube {

struct CheckpointInspection {
  std::filesystem::path checkpoint;  ///< or the directory of a run
  bool tensors = false;              ///< lists every tensor
  bool verify = true;                ///< reads all files and compares them with their checksums
  bool json = false;
};

/// Prints the contents of a checkpoint. Throws Error where the checkpoint has faults, after naming all of
/// them on standard output.
void inspect_checkpoint(const CheckpointInspection& options);

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "train/checkpoint/run_state.h"

/// The contents of a checkpoint, for people who look into it.
namespace nemocube {

struct CheckpointTensor {
  std::string name;   ///< of a weight: as in the files; of the optimizer: of the global tensor
  std::string dtype;  ///< as in the files: "F32"
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;
  std::int64_t parts = 1;  ///< files that hold a part
};

struct CheckpointFile {
  std::string name;  ///< relative to the checkpoint
  std::int64_t bytes = 0;
};

struct CheckpointContents {
  std::optional<RunState> state;
  std::optional<Origin> origin;  ///< nothing in checkpoints of 0.1.0
  RankLayout layout;
  Json losses;  ///< by validation set; empty before validation
  std::vector<CheckpointTensor> weights, optimizer;
  std::vector<CheckpointFile> files;  ///< regular files by name, checksums.json and strays included
  std::optional<FileSums> sums;       ///< nothing in checkpoints of 0.1.0
  /// Faults, each text naming the file: unreadable files, weights that contradict config.json, tensors of the
  /// optimizer without a weight, parts that do not make up their tensor.
  std::vector<std::string> faults;
};

/// Reads headers, indices and small files of a checkpoint; with `compare` also elements that two parts of one
/// tensor both hold (cover_faults()). A damaged file gives a fault, and all others are still read.
CheckpointContents read_contents(const std::filesystem::path& checkpoint, bool compare);

/// The checkpoint behind a user's name: a directory with any part of a checkpoint, RUN/LATEST and
/// RUN/LOWEST_VAL with the links followed, or RUN, which stands for RUN/LATEST where that link exists. Throws
/// Error that names the places looked at.
std::filesystem::path find_checkpoint(std::filesystem::path named);

}  // namespace nemocube

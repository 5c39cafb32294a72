#pragma once
#include <filesystem>

#include "train/recipe/recipe.h"

namespace nemocube {

/// How a run ended.
struct RunResult {
  std::int64_t steps = 0;            ///< done, over the whole run
  int signal = 0;                    ///< the signal that ended it early, or 0
  std::filesystem::path checkpoint;  ///< the newest, empty when none was written
};

/// Fine-tunes or pretrains as the recipe says, resuming from its checkpoint directory when there is something
/// to resume from. Writes training.jsonl, validation.jsonl and checkpoints; shows progress on standard error.
/// Throws Error when too many steps in a row were not finite (after saving nothing: the last checkpoint is
/// good).
RunResult run_training(const Recipe& recipe);

/// Most of what run_training would refuse before its first step, found without weights or optimizer: the files
/// of the model and its tokenizer, the data of all sets, schedule, parameter groups, a checkpoint to resume
/// from that is not there. Not what a checkpoint holds, nor whether files can be written. Throws Error.
void check_training(const Recipe& recipe);

}  // namespace nemocube

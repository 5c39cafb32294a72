#pragma once
#include <filesystem>

#include "train/recipe/recipe.h"

namespace nemocube {

/// How a run ended.
struct RunResult {
  std::int64_t steps = 0;                ///< done, over the whole run
  int signal = 0;                        ///< the signal that ended it early, or 0
  double first_loss = 0, last_loss = 0;  ///< of the steps of this call
  std::filesystem::path checkpoint;      ///< the newest, empty when none was written
};

/// Fine-tunes or pretrains as the recipe says, resuming from its checkpoint directory when there is something
/// to resume from. Writes training.jsonl, validation.jsonl and checkpoints; shows progress on standard error.
/// Throws Error when too many steps in a row were not finite (after saving nothing: the last checkpoint is
/// good).
RunResult run_training(const Recipe& recipe);

}  // namespace nemocube

#pragma once
#include "train/loop/run_summary.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Fine-tunes or pretrains as the recipe says, resuming from its checkpoint directory when there is something
/// to resume from. Writes training.jsonl, validation.jsonl and checkpoints; shows progress on standard error.
/// Throws Error, and saves nothing, when an update wrote numbers that are not finite or when too many steps in
/// a row were not finite: the last checkpoint is good.
RunResult run_training(const Recipe& recipe);

/// Looks for what run_training would refuse before its first step, without weights or optimizer: the files of
/// the model and its tokenizer, the data of all sets, schedule, parameter groups, a checkpoint directory that
/// cannot be written, a checkpoint to resume from that is not there. Not what a checkpoint holds. Creates
/// nothing. Says how much memory the run will take, and warns when that is more than there is. Throws one
/// Error that names all problems.
void check_training(const Recipe& recipe);

}  // namespace nemocube

#pragma once
#include <optional>

#include "parallel/comm/world.h"
#include "train/profile/step_range.h"
#include "train/recipe/environment.h"
#include "train/run/run_summary.h"

namespace nemocube {

/// Fine-tunes or pretrains as the recipe says. Resumes when the checkpoint directory holds a checkpoint.
/// Writes training.jsonl, validation.jsonl and checkpoints; shows progress on standard error. Throws Error,
/// and saves nothing, when an update wrote numbers that are not finite or when too many steps in a row were
/// not finite; the last checkpoint is good.
/// All ranks of the world call it, each with its device. Rank 0 alone writes logs and publishes checkpoints.
/// `profile`: steps of which a trace is written (train/profile/step_profile.h).
RunResult run_training(const Recipe& recipe, const ParallelSettings& settings, World& world, Device device,
                       const std::optional<StepRange>& profile = {});

/// Finds the problems that would stop run_training before its first step, without loading weights or making
/// an optimizer. Checks the files of the model and its tokenizer, the data of all sets, the schedule, the
/// parameter groups, that the checkpoint directory can be written, that the checkpoint to resume from exists
/// and was written with the same data, that the recipe fits `ranks` and the model can be divided among them,
/// but not the other contents of checkpoints. Creates nothing. Reports how much memory a rank will take, and
/// warns when the machine has less.
/// Throws one Error that names all problems.
void check_training(const Recipe& recipe, std::int64_t ranks, Device device, const std::string& gpu = {});

}  // namespace nemocube

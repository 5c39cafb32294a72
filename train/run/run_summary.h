#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace nemocube {

/// How a run ended.
struct RunResult {
  std::int64_t first_step = 0;   ///< the first step that this process ran; counted from 0
  std::int64_t steps_done = 0;   ///< over the whole run, steps before a resume included
  std::int64_t total_steps = 0;  ///< as the recipe asks for
  std::int64_t tokens = 0;       ///< sum of num_tokens_per_step (training.jsonl) over this process's steps
  double seconds = 0;            ///< of this process's steps, without checkpoints and validation
  std::optional<double> first_loss, last_loss;  ///< of this process's steps; absent when it ran none
  std::int64_t skipped_steps = 0;               ///< over the whole run
  int signal = 0;                               ///< the signal that ended it early, or 0
  std::string early_stopping;                   ///< why early stopping ended the run; empty: it did not
  std::filesystem::path checkpoint;             ///< the newest, empty when there is none
};

/// The last line of a run:
///     done: 50 steps in 3m05s, 1.2k tokens/s, loss 2.3456 at step 0 and 0.1234 at step 49, 0 skipped steps;
///     model in runs/x/epoch_0_step_49/model
/// After early stopping the number of steps is followed by its reason:
///     done: 30 steps of 50 (early stopping: ...) in 3m05s, ...
std::string summary(const RunResult& result);

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <optional>

#include "train/recipe/recipe.h"

/// The optimizer steps of a run and the events at each, as in NeMo AutoModel's StepScheduler. Steps count
/// from 0 over the whole run. All functions are pure.
namespace nemocube {

struct StepSchedule {
  std::int64_t microbatches = 1;            ///< forward passes per step and data-parallel rank
  std::optional<std::int64_t> epoch_steps;  ///< null: the data has no length
  std::optional<std::int64_t> num_epochs;   ///< null: as epoch_steps
  std::int64_t total_steps = 0;             ///< the smaller of max_steps and num_epochs * epoch_steps
  std::int64_t ckpt_every = 1;
  bool ckpt_every_epoch = true;
  bool saves = true;  ///< checkpoint.enabled
  std::optional<std::int64_t> val_every;
};

/// `batches`: forward passes per epoch and data-parallel rank, null for data without length, which needs
/// max_steps. A last group of fewer than `microbatches` batches is still a step.
StepSchedule schedule_steps(const Recipe& recipe, std::int64_t dp, std::optional<std::int64_t> batches);

/// Epochs that the run begins. 1 for data without length.
std::int64_t epochs_of(const StepSchedule& schedule);
bool is_last_step_of_epoch(const StepSchedule& schedule, std::int64_t step);  ///< false without length
bool is_last_step(const StepSchedule& schedule, std::int64_t step);
/// `preempted`: a signal asked the run to end after this step.
bool is_checkpoint_step(const StepSchedule& schedule, std::int64_t step, bool preempted = false);
/// Every val_every steps and, where the run saves checkpoints, at checkpoint steps, but never after a
/// preemption signal.
bool is_validation_step(const StepSchedule& schedule, std::int64_t step, bool preempted = false);

}  // namespace nemocube

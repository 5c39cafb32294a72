#include "train/schedule/step_schedule.h"

#include <algorithm>
#include <limits>

namespace nemocube {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool ends_interval(std::int64_t step, std::int64_t every) { return step % every == every - 1; }

constexpr std::int64_t default_epochs = 10;  // when neither epochs nor steps are given

}  // namespace

StepSchedule schedule_steps(const Recipe& recipe, std::int64_t dp, std::optional<std::int64_t> batches) {
  const StepSchedulerSection& s = recipe.step_scheduler;
  expect(batches.value_or(1) > 0, "schedule_steps: ", batches.value_or(1), " batches");
  StepSchedule schedule;
  schedule.microbatches = microbatches_of_step(recipe, dp);
  schedule.ckpt_every_epoch = s.save_checkpoint_every_epoch;
  schedule.val_every = s.val_every_steps;
  schedule.saves = recipe.checkpoint.enabled;
  if (!batches) {
    require(
        s.max_steps.has_value(), recipe.file,
        ": step_scheduler.max_steps is missing; this data set has no length, so epochs do not end the run");
    schedule.total_steps = *s.max_steps;
    schedule.ckpt_every = s.ckpt_every_steps.value_or(std::max<std::int64_t>(1, schedule.total_steps / 2));
    return schedule;
  }
  const std::int64_t epoch = ceil_div(*batches, schedule.microbatches);
  schedule.epoch_steps = epoch;
  schedule.num_epochs = s.num_epochs.value_or(s.max_steps ? ceil_div(*s.max_steps, epoch) : default_epochs);
  std::int64_t in_epochs = 0;
  if (__builtin_mul_overflow(*schedule.num_epochs, epoch, &in_epochs))
    in_epochs = std::numeric_limits<std::int64_t>::max();
  schedule.total_steps = std::min(in_epochs, s.max_steps.value_or(in_epochs));
  schedule.ckpt_every = s.ckpt_every_steps.value_or(epoch);
  return schedule;
}

std::int64_t epochs_of(const StepSchedule& schedule) {
  if (!schedule.epoch_steps) return 1;
  return schedule.total_steps / *schedule.epoch_steps + (schedule.total_steps % *schedule.epoch_steps != 0);
}

bool is_last_step_of_epoch(const StepSchedule& schedule, std::int64_t step) {
  return schedule.epoch_steps && ends_interval(step, *schedule.epoch_steps);
}

bool is_last_step(const StepSchedule& schedule, std::int64_t step) {
  return step + 1 >= schedule.total_steps;
}

bool is_checkpoint_step(const StepSchedule& schedule, std::int64_t step, bool preempted) {
  return preempted || ends_interval(step, schedule.ckpt_every) || is_last_step(schedule, step) ||
         (schedule.ckpt_every_epoch && is_last_step_of_epoch(schedule, step));
}

bool is_validation_step(const StepSchedule& schedule, std::int64_t step, bool preempted) {
  if (preempted) return false;
  return (schedule.val_every && ends_interval(step, *schedule.val_every)) ||
         (schedule.saves && is_checkpoint_step(schedule, step));
}

}  // namespace nemocube

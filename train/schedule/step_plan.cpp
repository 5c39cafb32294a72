#include "train/schedule/step_plan.h"

#include <algorithm>
#include <limits>

namespace nemocube {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool ends_interval(std::int64_t step, std::int64_t every) { return step % every == every - 1; }

constexpr std::int64_t default_epochs = 10;  // when neither epochs nor steps are given

}  // namespace

StepPlan plan_steps(const Recipe& recipe, std::int64_t dp, std::optional<std::int64_t> batches) {
  const StepSchedulerSection& s = recipe.step_scheduler;
  expect(batches.value_or(1) > 0, "plan_steps: ", batches.value_or(1), " batches");
  StepPlan plan;
  plan.microbatches = microbatches_of_step(recipe, dp);
  plan.ckpt_every_epoch = s.save_checkpoint_every_epoch;
  plan.val_every = s.val_every_steps;
  plan.saves = recipe.checkpoint.enabled;
  if (!batches) {
    require(
        s.max_steps.has_value(), recipe.file,
        ": step_scheduler.max_steps is missing; this data set has no length, so epochs do not end the run");
    plan.total_steps = *s.max_steps;
    plan.ckpt_every = s.ckpt_every_steps.value_or(std::max<std::int64_t>(1, plan.total_steps / 2));
    return plan;
  }
  const std::int64_t epoch = ceil_div(*batches, plan.microbatches);
  plan.epoch_steps = epoch;
  plan.num_epochs = s.num_epochs.value_or(s.max_steps ? ceil_div(*s.max_steps, epoch) : default_epochs);
  std::int64_t in_epochs = 0;
  if (__builtin_mul_overflow(*plan.num_epochs, epoch, &in_epochs))
    in_epochs = std::numeric_limits<std::int64_t>::max();
  plan.total_steps = std::min(in_epochs, s.max_steps.value_or(in_epochs));
  plan.ckpt_every = s.ckpt_every_steps.value_or(epoch);
  return plan;
}

bool is_last_step_of_epoch(const StepPlan& plan, std::int64_t step) {
  return plan.epoch_steps && ends_interval(step, *plan.epoch_steps);
}

bool is_last_step(const StepPlan& plan, std::int64_t step) { return step + 1 >= plan.total_steps; }

bool is_checkpoint_step(const StepPlan& plan, std::int64_t step, bool preempted) {
  return preempted || ends_interval(step, plan.ckpt_every) || is_last_step(plan, step) ||
         (plan.ckpt_every_epoch && is_last_step_of_epoch(plan, step));
}

bool is_validation_step(const StepPlan& plan, std::int64_t step, bool preempted) {
  if (preempted) return false;
  return (plan.val_every && ends_interval(step, *plan.val_every)) ||
         (plan.saves && is_checkpoint_step(plan, step));
}

}  // namespace nemocube

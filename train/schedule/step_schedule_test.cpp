#include "train/schedule/step_schedule.h"

#include <doctest/doctest.h>

#include <vector>

using namespace nemocube;

namespace {

Recipe recipe_of(const std::string& scheduler) {
  return parse_recipe(cat("step_scheduler: {", scheduler, "}\ndataset: {_target_: mock}\n"), "r.yaml", {},
                      RecipeUse::data);
}

StepSchedule plan_of(const std::string& scheduler, std::optional<std::int64_t> batches, std::int64_t dp = 1) {
  return schedule_steps(recipe_of(scheduler), dp, batches);
}

std::vector<std::int64_t> steps_where(const StepSchedule& schedule,
                                      bool (*test)(const StepSchedule&, std::int64_t, bool)) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; step < schedule.total_steps; ++step)
    if (test(schedule, step, false)) steps.push_back(step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("steps of an epoch: a short last group is a step") {
  const StepSchedule schedule = plan_of("global_batch_size: 256, local_batch_size: 64", 684, 2);
  CHECK(schedule.microbatches == 2);
  CHECK(schedule.epoch_steps == 342);
  CHECK(plan_of("global_batch_size: 8, local_batch_size: 2, num_epochs: 1", 5).total_steps == 2);
}

TEST_CASE("the run ends with its epochs or its steps, whichever is first") {
  const std::string batch = "global_batch_size: 1, ";
  CHECK(plan_of(batch + "num_epochs: 3", 7).total_steps == 21);
  CHECK(plan_of(batch + "num_epochs: 3, max_steps: 10", 7).total_steps == 10);
  CHECK(plan_of(batch + "num_epochs: 1, max_steps: 10", 7).total_steps == 7);
  CHECK(plan_of(batch + "num_epochs: null, max_steps: 10", 3).num_epochs == 4);
  CHECK(plan_of(batch + "num_epochs: null, max_steps: 10", 3).total_steps == 10);
  CHECK(plan_of(batch + "num_epochs: null", 3).total_steps == 30);
  CHECK(plan_of("global_batch_size: 1", 3).total_steps == 30);
  CHECK(plan_of(batch + "max_steps: 500", 3).total_steps == 30);
  CHECK(plan_of(batch + "num_epochs: 9000000000000000000, max_steps: 5", 100).total_steps == 5);
  const StepSchedule unsized =
      plan_of(batch + "num_epochs: 1, max_steps: 9, ckpt_every_steps: null", std::nullopt);
  CHECK(epochs_of(plan_of(batch + "num_epochs: 3", 7)) == 3);
  CHECK(epochs_of(plan_of(batch + "num_epochs: 3, max_steps: 15", 7)) == 3);
  CHECK(epochs_of(plan_of(batch + "num_epochs: 3, max_steps: 14", 7)) == 2);
  CHECK(epochs_of(unsized) == 1);
  CHECK(unsized.total_steps == 9);
  CHECK(unsized.ckpt_every == 4);
  CHECK_FALSE(is_last_step_of_epoch(unsized, 8));
  CHECK_THROWS_WITH(plan_of(batch + "num_epochs: 1", std::nullopt),
                    doctest::Contains("max_steps is missing"));
}

TEST_CASE("checkpoint and validation steps") {
  const std::string batch = "global_batch_size: 1, ";
  const StepSchedule schedule = plan_of(batch + "num_epochs: 2, ckpt_every_steps: 4, val_every_steps: 3", 7);
  CHECK(steps_where(schedule, is_checkpoint_step) == Steps{3, 6, 7, 11, 13});
  CHECK(steps_where(schedule, is_validation_step) == Steps{2, 3, 5, 6, 7, 8, 11, 13});
  CHECK(is_last_step(schedule, 13));
  CHECK_FALSE(is_last_step(schedule, 12));
  CHECK(is_checkpoint_step(schedule, 1, true));
  CHECK_FALSE(is_validation_step(schedule, 2, true));
  StepSchedule unsaved = schedule;
  unsaved.saves = false;
  CHECK(steps_where(unsaved, is_validation_step) == Steps{2, 5, 8, 11});

  const StepSchedule by_steps =
      plan_of(batch + "num_epochs: 2, ckpt_every_steps: 4, save_checkpoint_every_epoch: false", 7);
  CHECK(steps_where(by_steps, is_checkpoint_step) == Steps{3, 7, 11, 13});
  CHECK(steps_where(by_steps, is_validation_step) == Steps{3, 7, 11, 13});
  CHECK(steps_where(plan_of(batch + "num_epochs: 3, ckpt_every_steps: null", 7), is_checkpoint_step) ==
        Steps{6, 13, 20});
  CHECK(steps_where(plan_of(batch + "max_steps: 5", 100), is_checkpoint_step) == Steps{4});
}

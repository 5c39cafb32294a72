#include "data/loader/plan.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace nemocube;

TEST_CASE("plan: the arithmetic of an epoch") {
  const BatchPlan squad = plan_batches(87'599, 256, 64, 2, true);
  CHECK(squad.accumulation == 2);
  CHECK(squad.rows_per_rank == 43'799);
  CHECK(squad.batches_per_epoch == 684);
  CHECK(squad.steps_per_epoch == 342);
  const BatchPlan all = plan_batches(87'599, 256, 64, 2, false);
  CHECK(all.batches_per_epoch == 685);
  CHECK(all.steps_per_epoch == 343);
  const BatchPlan small = plan_batches(10, 4, 2, 1, false);
  CHECK(small.batches_per_epoch == 5);
  CHECK(small.steps_per_epoch == 3);  // the last step has one batch
  CHECK(plan_batches(3, 4, 4, 1, true).steps_per_epoch == 0);
  CHECK_THROWS_WITH_AS(plan_batches(10, 6, 2, 2, false),
                       "global_batch_size 6 must be a multiple of local_batch_size * dp = 2 * 2 = 4", Error);
  CHECK_THROWS_AS(plan_batches(10, 0, 1, 1, false), Error);
  CHECK_THROWS_AS(plan_batches(10, 4, 0, 1, false), Error);
}

TEST_CASE("plan: steps of a run") {
  const BatchPlan plan = plan_batches(10, 4, 2, 1, false);
  CHECK(total_steps(plan, 10, std::nullopt) == 30);
  CHECK(total_steps(plan, 10, 7) == 7);
  CHECK(total_steps(plan, 1, 7) == 3);
  CHECK(total_steps(plan, std::nullopt, 7) == 7);
  CHECK_THROWS_AS(total_steps(plan, std::nullopt, std::nullopt), Error);
  CHECK_THROWS_AS(total_steps(plan, 0, 7), Error);
  CHECK_THROWS_AS(total_steps(plan, 1, 0), Error);
}

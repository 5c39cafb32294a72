#include "data/loader/plan.h"

#include <algorithm>

#include "core/error.h"

namespace nemocube {

namespace {
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
}  // namespace

BatchPlan plan_batches(std::int64_t rows, std::int64_t global_batch_size, std::int64_t local_batch_size,
                       std::int64_t dp_size, bool drop_last) {
  expect(rows >= 0 && dp_size >= 1, "plan_batches: ", rows, " rows, dp_size ", dp_size);
  require(local_batch_size >= 1, "local_batch_size must be 1 or more, is ", local_batch_size);
  require(global_batch_size >= 1, "global_batch_size must be 1 or more, is ", global_batch_size);
  const std::int64_t at_once = local_batch_size * dp_size;
  require(global_batch_size % at_once == 0, "global_batch_size ", global_batch_size,
          " must be a multiple of local_batch_size * dp = ", local_batch_size, " * ", dp_size, " = ",
          at_once);
  BatchPlan plan;
  plan.accumulation = global_batch_size / at_once;
  plan.rows_per_rank = rows / dp_size;
  plan.batches_per_epoch =
      drop_last ? plan.rows_per_rank / local_batch_size : ceil_div(plan.rows_per_rank, local_batch_size);
  plan.steps_per_epoch = ceil_div(plan.batches_per_epoch, plan.accumulation);
  return plan;
}

std::int64_t total_steps(const BatchPlan& plan, std::optional<std::int64_t> num_epochs,
                         std::optional<std::int64_t> max_steps) {
  require(num_epochs || max_steps, "step_scheduler: want num_epochs or max_steps");
  require(!num_epochs || *num_epochs >= 1, "num_epochs must be 1 or more, is ", num_epochs.value_or(0));
  require(!max_steps || *max_steps >= 1, "max_steps must be 1 or more, is ", max_steps.value_or(0));
  if (!num_epochs) return *max_steps;
  const std::int64_t by_epochs = *num_epochs * plan.steps_per_epoch;
  return max_steps ? std::min(by_epochs, *max_steps) : by_epochs;
}

}  // namespace nemocube

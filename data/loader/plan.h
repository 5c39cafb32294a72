#pragma once
#include <cstdint>
#include <optional>

namespace nemocube {

/// How a data set divides into steps. Tensor, context and pipeline parallelism do not enter: their ranks
/// share the batch.
struct BatchPlan {
  std::int64_t accumulation = 1;   ///< batches of a rank in one optimizer step
  std::int64_t rows_per_rank = 0;  ///< floor(rows / dp_size)
  std::int64_t batches_per_epoch = 0;
  std::int64_t steps_per_epoch = 0;  ///< the last may have fewer batches
};

/// global_batch_size and local_batch_size as in the recipe's step_scheduler. Throws Error unless
/// global_batch_size is a multiple of local_batch_size * dp_size.
BatchPlan plan_batches(std::int64_t rows, std::int64_t global_batch_size, std::int64_t local_batch_size,
                       std::int64_t dp_size, bool drop_last);

/// Steps of a whole run: the lesser of num_epochs epochs and max_steps; with one of them missing, the other.
/// Throws Error when both are missing or below 1.
std::int64_t total_steps(const BatchPlan& plan, std::optional<std::int64_t> num_epochs,
                         std::optional<std::int64_t> max_steps);

}  // namespace nemocube

#pragma once
#include <optional>
#include <vector>

#include "model/parameters.h"
#include "parallel/schedule/schedules.h"
#include "parallel/schedule/transfers.h"

namespace nemocube {

/// Which blocks each stage of a pipeline has, where the stages are, and in which order they work. By default
/// one rank has everything.
struct PipelinePlan {
  std::vector<ModelChunk> stages{ModelChunk{}};
  std::vector<std::int64_t> rank_of_stage{0};
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::optional<Schedule> custom;  ///< instead of `kind`

  std::int64_t last_stage() const { return std::ssize(stages) - 1; }
  /// The stages of a rank, in their order.
  std::vector<std::int64_t> stages_of(std::int64_t rank) const;
  std::vector<ModelChunk> chunks_of(std::int64_t rank) const;
  /// Throws Error when a custom schedule has fewer microbatches.
  Schedule schedule(std::int64_t pp, std::int64_t microbatches) const;
  /// The forward pass of one microbatch.
  Schedule forward_schedule(std::int64_t pp) const;
};

}  // namespace nemocube

#include "parallel/parallel_model/pipeline_plan.h"

#include "core/error.h"

namespace nemocube {

std::vector<std::int64_t> PipelinePlan::stages_of(std::int64_t rank) const {
  std::vector<std::int64_t> own;
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s)
    if (rank_of_stage[s] == rank) own.push_back(static_cast<std::int64_t>(s));
  return own;
}

std::vector<ModelChunk> PipelinePlan::chunks_of(std::int64_t rank) const {
  std::vector<ModelChunk> own;
  for (const std::int64_t s : stages_of(rank)) own.push_back(stages[static_cast<std::size_t>(s)]);
  return own;
}

Schedule PipelinePlan::schedule(std::int64_t pp, std::int64_t microbatches) const {
  if (!custom) return make_schedule(kind, pp, std::ssize(stages) / pp, microbatches);
  require(microbatch_count(*custom) >= microbatches,
          "distributed.pipeline.pp_schedule_csv: the schedule has ", microbatch_count(*custom),
          " microbatches, but a step has ", microbatches);
  return first_microbatches(*custom, microbatches);
}

Schedule PipelinePlan::forward_schedule(std::int64_t pp) const {
  Schedule schedule;
  for (std::int64_t rank = 0; rank < pp; ++rank) {
    schedule.emplace_back();
    for (const std::int64_t stage : stages_of(rank))
      schedule.back().push_back({Action::Kind::forward, stage, 0});
  }
  return schedule;
}

}  // namespace nemocube

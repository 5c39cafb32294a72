#include "parallel/parallel_model/parallel_plan.h"

namespace nemocube {

bool copies_embeddings(const ParallelPlan& plan, const ModelSetup& setup) {
  const bool tied = setup.config.tie_word_embeddings;
  if (setup.choices.mtp.depths == 0 && !tied) return false;
  const std::int64_t first = plan.pipeline.rank_of_stage.front(), last = plan.pipeline.rank_of_stage.back();
  if (first == last) return false;
  require(first == 0 && last == plan.grid.pp - 1, tied ? "tied embeddings" : "multi-token prediction",
          ": the first and the last pipeline stage are on the pipeline ranks ", first, " and ", last,
          "; want the same rank, or 0 and ", plan.grid.pp - 1);
  return true;
}

TensorCut with_copy_at_end(TensorCut embeddings, const GridPlace& place) {
  const std::int64_t elements = embeddings.shard.numel();
  embeddings.sum = Group::embd;
  if (elements > 0) embeddings.summed = {Range{0, elements}};
  if (place.pp > 0) embeddings.counted.clear();
  return embeddings;
}

std::set<Group> used_groups(const ParallelPlan& plan, const ModelSetup& setup) {
  using enum Group;
  std::set<Group> groups{dp, dp_cp, tp, cp, pp, kv_replicas, state_replicas};
  if (plan.data.level != ZeroLevel::none) groups.insert({dp_shard_cp, dp_replicate});
  if (setup.expert_layers() > 0) groups.insert({ep, expt_tp, tp_ep, expt_dp, tp_cp, tp_dp_cp});
  if (copies_embeddings(plan, setup)) groups.insert(embd);
  return groups;
}

}  // namespace nemocube

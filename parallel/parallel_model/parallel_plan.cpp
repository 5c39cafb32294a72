#include "parallel/parallel_model/parallel_plan.h"

namespace nemocube {

std::set<std::string> used_groups(const ParallelPlan& plan, const NemotronHConfig& config) {
  std::set<std::string> names{"dp", "dp_cp", "tp", "cp", "pp", "kv_replicas", "state_replicas"};
  if (plan.data.level != ZeroLevel::none) names.insert({"dp_shard_cp", "dp_replicate"});
  if (config.expert_layers() > 0) names.insert({"ep", "expt_tp", "tp_ep", "expt_dp", "tp_cp", "tp_dp_cp"});
  return names;
}

}  // namespace nemocube

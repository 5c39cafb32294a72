#pragma once
#include <set>
#include <string>
#include <vector>

#include "model/config.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/data_parallel/data_parallel.h"
#include "parallel/expert_parallel/make_dispatcher.h"
#include "parallel/grid/grid_sizes.h"
#include "parallel/parallel_model/pipeline_plan.h"
#include "parallel/tensor_parallel/plan.h"

namespace nemocube {

/// How a model is divided among ranks: data alone. By default one rank has everything.
struct ParallelPlan {
  GridSizes grid;
  bool sequence_parallel = false;
  std::vector<TensorParallelRule> tensor_rules;  ///< before those of the usual plan
  DispatcherKind dispatcher = DispatcherKind::alltoall;
  ContextAttention context_attention = ContextAttention::ring;
  DataParallelOptions data;
  PipelinePlan pipeline;
};

/// The names of the groups (ProcessGroups) that a model of this config uses under a plan. Ranks make no others.
std::set<std::string> used_groups(const ParallelPlan& plan, const NemotronHConfig& config);

}  // namespace nemocube

#pragma once
#include <set>
#include <vector>

#include "model/config.h"
#include "parallel/comm/group.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/data_parallel/data_parallel.h"
#include "parallel/expert_parallel/make_dispatcher.h"
#include "parallel/grid/grid_sizes.h"
#include "parallel/parallel_model/pipeline_plan.h"
#include "parallel/tensor_parallel/cuts.h"
#include "parallel/tensor_parallel/plan.h"

namespace nemocube {

/// How a model is divided among ranks: data alone. By default one rank has everything.
struct ParallelPlan {
  GridSizes grid;
  bool sequence_parallel = false;
  std::vector<TensorParallelRule> tensor_rules;  ///< these come before the rules of the usual plan
  DispatcherKind dispatcher = DispatcherKind::alltoall;
  ContextAttention context_attention = ContextAttention::ring;
  DataParallelOptions data;
  PipelinePlan pipeline;
};

/// Whether the last pipeline rank has a copy of the embeddings, for a tied head or multi-token prediction.
/// The gradients of both copies are summed over the group "embd". Throws Error where the first and the last
/// stage are neither on one rank nor on the first and the last.
bool copies_embeddings(const ParallelPlan& plan, const ModelSetup& setup);
/// The cut of the embeddings where the last pipeline rank has a copy: both ends have a part of the gradient,
/// and the copy at the front counts.
TensorCut with_copy_at_end(TensorCut embeddings, const GridPlace& place);

/// The groups (ProcessGroups) that a model uses under a plan. Ranks make no others.
std::set<Group> used_groups(const ParallelPlan& plan, const ModelSetup& setup);

}  // namespace nemocube

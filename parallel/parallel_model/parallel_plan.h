#pragma once
#include <vector>

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

}  // namespace nemocube

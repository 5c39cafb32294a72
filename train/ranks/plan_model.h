#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "parallel/parallel_model/parallel_plan.h"
#include "train/ranks/rank_sizes.h"
#include "train/recipe/environment.h"

namespace nemocube {

/// How a model is divided among the ranks of `ranks` as a recipe and the environment say: sizes, cuts,
/// stages, schedule. Throws Error for sizes that the model cannot be divided by, saying which would work.
ParallelPlan plan_model(const DistributedSection& section, const ParallelSettings& settings,
                        const RankSizes& ranks, const ModelSetup& setup);

/// For the start of a run: where its plan of tensor parallelism comes from, in one line, and what the plan
/// notes of its rules. Empty with one tensor-parallel rank. Throws Error as plan_model() does.
std::vector<std::string> tensor_plan_lines(const DistributedSection& section,
                                           const ParallelSettings& settings, const ModelSetup& setup);

}  // namespace nemocube

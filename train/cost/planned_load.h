#pragma once
#include <string>

#include "model/stack.h"
#include "parallel/planner/step_load.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// What a step of this recipe brings to each of `dp` replicas, as far as the recipe alone says it: every row
/// of a microbatch is one sequence of the data set's seq_length or packed_sequence_size tokens (4096 where
/// there is neither), with a label for each but the last. `model` may consist of meta tensors in the dtype of
/// the run. The kernels are those of the recipe, see settle().
StepLoad planned_load(const Recipe& recipe, const Stack& model, std::int64_t dp);

/// What the traffic that follows from planned_load() takes for granted and the recipe does not; empty where
/// it does: for mock data, and models without experts or with the balanced gate.
std::string assumption(const Recipe& recipe, const ModelConfig& config);

}  // namespace nemocube

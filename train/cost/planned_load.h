#pragma once
#include <string>

#include "model/stack.h"
#include "parallel/planner/step_load.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The load of a step of this recipe on each of `dp` replicas, from the recipe alone: every row of a
/// microbatch is one sequence of the data set's seq_length or packed_sequence_size tokens (4096 without
/// either), with a label for each but the last. `model` may consist of meta tensors in the dtype of the run.
/// The kernels are chosen by the recipe, see settle().
StepLoad planned_load(const Recipe& recipe, const Stack& model, std::int64_t dp);

/// The assumption in the traffic of planned_load() that the recipe does not ensure. Empty where it does: for
/// mock data, and models without experts or with the balanced gate.
std::string assumption(const Recipe& recipe, const ModelConfig& config);

}  // namespace nemocube

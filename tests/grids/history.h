#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/step/train_step.h"

namespace nemocube::testing {

/// What several steps of training give.
struct History {
  std::vector<StepResult> steps;
  std::map<std::string, Tensor> weights;  ///< of the whole model at the end, by parameter
};

/// The values of all parameters, copied.
std::map<std::string, Tensor> weights_of(const Stack& model);

/// Runs `train` on rank 0 of the test's world and returns its History on all ranks, which all call. Rank 0
/// trains alone, because a reference that each of 8 ranks trains takes longer than what is compared with the
/// reference. On the other ranks weights have one dimension and are f64, which holds every value exactly.
History history_of_rank_0(const std::function<History()>& train);

}  // namespace nemocube::testing

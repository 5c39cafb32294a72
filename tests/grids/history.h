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
std::map<std::string, Tensor> weights_of(const NemotronH& model);

/// The History that `train` gives on rank 0 of the test's world, on all ranks. Its weights are f64 on the others, their
/// values exact. All ranks call; a reference that each of 8 ranks computes would take longer than what is compared with it.
History history_of_rank_0(const std::function<History()>& train);

}  // namespace nemocube::testing

#pragma once
#include <set>
#include <string>
#include <vector>

#include "model/config.h"

namespace nemocube {

/// The tensors that a recipe's key `freeze` leaves untrained.
struct FrozenTensors {
  std::set<TensorName> names;  ///< for ModelChoices::frozen
  struct Line {
    std::string pattern;
    std::int64_t tensors = 0, parameters = 0;
  };
  std::vector<Line> lines;  ///< the tensors that each pattern fits, for the log
};

/// A pattern (ModulePattern) freezes a tensor when it fits the name of the tensor or of a module around it:
/// "backbone.layers.3" is all of block 3, "*.mixer.experts" the routed experts of all blocks. Throws Error
/// for a pattern that fits nothing, naming modules with similar names, and where nothing is left to train.
FrozenTensors frozen_tensors(const ModelSetup& setup, const std::vector<std::string>& patterns);

}  // namespace nemocube

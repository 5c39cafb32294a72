#pragma once
#include <string>

#include "train/recipe/recipe.h"

namespace nemocube {

/// What a run reads, a line for each file: name, size, and a sum of its first and last MiB. Ranks of a run compare
/// these texts, since a node with another copy of a file would train another model without a word.
std::string describe_inputs(const Recipe& recipe);

}  // namespace nemocube

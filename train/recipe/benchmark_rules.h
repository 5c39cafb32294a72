#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// Of a benchmark, which trains or is planned: the keys that it wants; those that it takes no notice of get
/// the values that it has instead, and are listed as without effect. Of other recipes the keys of a benchmark
/// are.
void benchmark_rules(Recipe& recipe, Reading& reading, RecipeUse use);

/// The mock data gets the vocabulary of the model, where there is one.
void take_vocabulary_of_model(Recipe& recipe, Reading& reading);

}  // namespace nemocube::recipe

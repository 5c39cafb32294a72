#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// For a benchmark that trains or is planned: checks the keys that it needs. Keys that a
/// benchmark ignores get its own values and are listed as without effect. In other
/// recipes the keys of a benchmark are listed so.
void benchmark_rules(Recipe& recipe, Reading& reading, RecipeUse use);

/// Mock data gets the vocabulary of the model, where the recipe has a model.
void take_vocabulary_of_model(Recipe& recipe, Reading& reading);

}  // namespace nemocube::recipe

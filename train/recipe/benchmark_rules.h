#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// Rules of the key `recipe` and of benchmarks.
///
/// A benchmark that trains or is planned: the keys that it needs are checked. Keys that a benchmark ignores
/// get its own values and are listed as without effect.
/// Other recipes: the keys of a benchmark are listed as without effect. A class of AutoModel's that trains
/// something else than a model of texts, such as FinetuneRecipeForVLM, is a fault.
void benchmark_rules(Recipe& recipe, Reading& reading, RecipeUse use);

/// Mock data gets the vocabulary of the model, where the recipe has a model.
void take_vocabulary_of_model(Recipe& recipe, Reading& reading);

}  // namespace nemocube::recipe

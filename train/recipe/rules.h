#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// What the keys of a recipe say together, after all are read: defaults that depend on other keys, spellings
/// that mean another key, contradictions, and what `use` wants. Problems go to `reading`.
void apply_rules(Recipe& recipe, Reading& reading, RecipeUse use);

}  // namespace nemocube::recipe

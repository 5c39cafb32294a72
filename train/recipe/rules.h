#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// Applies the rules over several keys after all keys are read: defaults that depend on other keys,
/// alternative spellings of a key, contradictions, and the keys that `use` requires. Adds problems to
/// `reading`.
void apply_rules(Recipe& recipe, Reading& reading, RecipeUse use);

}  // namespace nemocube::recipe

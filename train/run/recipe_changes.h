#pragma once
#include <filesystem>

#include "train/recipe/recipe.h"

namespace nemocube {

/// Warns of every key in which `recipe` differs from the recipe that the checkpoint was written with.
void report_recipe_changes(const std::filesystem::path& checkpoint, const Recipe& recipe);

}  // namespace nemocube

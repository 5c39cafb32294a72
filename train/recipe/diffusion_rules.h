#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

namespace nemocube::recipe {

/// Rules of the section `dllm` and of model.dlm_paradigm.
void diffusion_rules(const Recipe& recipe, Reading& reading, RecipeUse use);

}  // namespace nemocube::recipe

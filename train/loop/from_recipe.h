#pragma once
#include "data/loader/loader.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// What a training recipe asks for, in the terms of the parts that do it.
namespace nemocube {

OptimizerOptions optimizer_options(const OptimizerSection& section);
LoaderOptions loader_options(const Recipe& recipe);
/// What the weights are stored in: as the recipe says, else as config.json says, else f32.
DType weight_dtype(const Recipe& recipe, const NemotronHConfig& config);
/// The model with its weights, its loss chunks and the coefficients of its routers' auxiliary losses.
LoadedModel recipe_model(const Recipe& recipe);

}  // namespace nemocube

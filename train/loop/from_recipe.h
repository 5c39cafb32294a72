#pragma once
#include "data/loader/loader.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// Turns the sections of a training recipe into the objects and options of the program.
namespace nemocube {

OptimizerOptions optimizer_options(const OptimizerSection& section);
LoaderOptions loader_options(const Recipe& recipe);
/// The dtype that weights are stored in: from the recipe, else from config.json, else f32.
DType weight_dtype(const Recipe& recipe, const NemotronHConfig& config);
/// The model with its weights, its loss chunks and the coefficients of its routers' auxiliary losses.
LoadedModel recipe_model(const Recipe& recipe);

}  // namespace nemocube

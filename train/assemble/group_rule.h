#pragma once
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The factors on learning rate and weight decay that a recipe's optimizer section asks for. Throws Error
/// naming the entry of param_group_overrides whose pattern is not a regular expression or matches no
/// trainable parameter.
GroupRule group_rule(const OptimizerSection& section, const ParameterStore& parameters);

}  // namespace nemocube

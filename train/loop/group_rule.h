#pragma once
#include "train/recipe/recipe.h"

namespace nemocube {

/// Factors on learning rate and weight decay as a recipe's optimizer section asks for them. Throws Error
/// naming the entry of param_group_overrides whose pattern is no regular expression or is found in the name
/// of no trainable parameter.
GroupRule group_rule(const OptimizerSection& section, const ParameterStore& parameters);

}  // namespace nemocube

#pragma once
#include "train/recipe/reading.h"
#include "train/recipe/recipe.h"

/// The part of apply_rules() for the sections that say how ranks share the work.
namespace nemocube::recipe {

/// Removes what has no meaning with the sizes of the recipe, with a warning: sequence_parallel for one
/// tensor-parallel rank, the section of the pipeline for one stage.
void distributed_rules(DistributedSection& section, Reading& reading);
void dist_env_rules(const DistEnvSection& section, Reading& reading);
/// For runs: a file that the section of the pipeline names is there.
void want_pipeline(const DistributedSection& section, Reading& reading);

}  // namespace nemocube::recipe

#pragma once
#include <optional>

#include "data/loader/corruption.h"
#include "model/config.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The recipe's training of a model that denoises (model.dlm_paradigm, model.block_size). Throws Error naming
/// the key where such a model has no paradigm, or another model has one.
DiffusionTraining diffusion_training(const Recipe& recipe, const ModelConfig& config);

/// How the rows of the recipe are noised (section dllm); nothing where they are not.
///
///     mask_token       dllm.mask_token_id; absent: config.json's mask_token_id
///     fill_token       the first eos_token_id of config.json, where dllm.pad_block_size is given
///     longest          seq_length of `section`
///
/// Throws Error naming the key for a mask token outside of the vocabulary, and where texts are to be filled
/// and config.json has no eos_token_id.
std::optional<Corruption> recipe_corruption(const Recipe& recipe, const ModelConfig& config,
                                            const DatasetSection& section);

}  // namespace nemocube

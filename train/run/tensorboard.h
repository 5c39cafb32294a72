#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "train/logging/tensorboard_log.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The recipe's options of event files; nothing where the recipe wants none.
std::optional<TensorboardOptions> tensorboard_options(const Recipe& recipe);

/// StepResult::auxiliary_losses over their coefficients and the number of MoE blocks of the whole model, as
/// Megatron-LM logs them (megatron/core/transformer/moe/moe_utils.py, track_moe_metrics). The blocks of a
/// repeated layer of multi-token prediction count once for each depth, as in Megatron-LM.
std::vector<std::pair<std::string, double>> mean_auxiliary_losses(
    const MoeSection& coefficients, const ModelSetup& setup,
    std::span<const std::pair<std::string, double>> losses);

}  // namespace nemocube

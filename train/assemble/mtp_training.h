#pragma once
#include <cstdint>
#include <optional>

#include "train/model_io/opened_model.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// What a recipe says about multi-token prediction of a model whose config.json is `config`. `stored`: depths
/// of which the files have weights; nothing for fresh weights, and where one depth is asked for.
///
///     depths           model.num_nextn_predict_layers; absent: those of config.json where a scaling factor
///                      is given, else 0
///     repeated         model.mtp_use_repeated_layer; absent: true for one stored depth, false for as many as
///                      are asked for
///     scaling_factor   mtp.scaling_factor, else model.mtp_loss_scaling_factor, else 0.1
///
/// Of files with several depths one may be asked for: that is the first, and the others are carried as they
/// are. Throws Error naming the key where the weights are else not those of the wish, where neither key nor
/// weights say whether the layer is repeated (AutoModel and Megatron differ then), and where a key says how
/// depths are trained but neither the recipe nor config.json has any. Such a key beside
/// model.num_nextn_predict_layers 0 is a warning.
MtpTraining mtp_training(const Recipe& recipe, const ModelConfig& config, std::optional<std::int64_t> stored);
/// The same for the recipe's own model, `source`. Reads headers of its weights where they decide; where the
/// model's folder has none, config.json says how many depths are stored.
MtpTraining mtp_training(const Recipe& recipe, const OpenedModel& source);

}  // namespace nemocube

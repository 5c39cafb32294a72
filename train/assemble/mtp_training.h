#pragma once
#include <cstdint>
#include <optional>

#include "train/model_io/opened_model.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The settings of a recipe for multi-token prediction of a model with the config.json `config`. `stored`:
/// number of depths with weights in the files; nothing for fresh weights, and where one depth is asked for.
///
///     depths           model.num_nextn_predict_layers; absent: as in config.json where a scaling factor
///                      is given, else 0
///     repeated         model.mtp_use_repeated_layer; absent: true for one stored depth, false where as many
///                      are asked for
///     scaling_factor   mtp.scaling_factor, else model.mtp_loss_scaling_factor, else 0.1
///
/// For files with several depths a recipe may ask for one: then the first depth is trained, and the others
/// are carried unchanged. Throws Error naming the key where stored and wanted depths differ otherwise, where
/// neither key nor weights decide whether the layer is repeated (AutoModel and Megatron differ then), and
/// where a key says how depths are trained but neither the recipe nor config.json has any. Such a key beside
/// model.num_nextn_predict_layers 0 is a warning.
MtpTraining mtp_training(const Recipe& recipe, const ModelConfig& config, std::optional<std::int64_t> stored);
/// The same for the recipe's own model, `source`. Reads headers of its weights where they matter; in a folder
/// without weights, config.json says how many depths are stored.
MtpTraining mtp_training(const Recipe& recipe, const OpenedModel& source);

}  // namespace nemocube

#include "train/build/mtp_training.h"

#include "core/log.h"
#include "data/hf/hf_weights.h"

namespace nemocube {
namespace {

constexpr const char* depths_key = "model.num_nextn_predict_layers";
constexpr const char* repeated_key = "model.mtp_use_repeated_layer";

std::int64_t wanted_depths(const Recipe& recipe, const NemotronHConfig& config) {
  const ModelSection& model = *recipe.model;
  if (model.num_nextn_predict_layers) return *model.num_nextn_predict_layers;
  return model.mtp_loss_scaling_factor || recipe.mtp.scaling_factor ? config.num_nextn_predict_layers : 0;
}

bool is_repeated(const Recipe& recipe, std::int64_t depths, std::optional<std::int64_t> stored) {
  const std::optional<bool> wish = recipe.model->mtp_use_repeated_layer;
  if (depths <= 1) return false;
  if (!stored) {
    require(wish.has_value(), recipe.file, ": ", depths_key, " is ", depths, ": want ", repeated_key,
            " true (one layer, applied ", depths, " times) or false (", depths,
            " layers), found neither it nor weights that tell");
    return *wish;
  }
  const bool repeated = wish.value_or(*stored == 1);
  const std::int64_t needed = repeated ? 1 : depths;
  require(*stored == needed, recipe.file, ": ", depths_key, " is ", depths, ", ", repeated_key, " is ",
          wish ? (*wish ? "true" : "false") : "absent", ": want the weights of ", counted(needed, "depth"),
          " of multi-token prediction, found those of ", *stored, " in ", recipe.model->path);
  return repeated;
}

}  // namespace

MtpTraining mtp_training(const Recipe& recipe, const NemotronHConfig& config,
                         std::optional<std::int64_t> stored) {
  MtpTraining training;
  training.depths = wanted_depths(recipe, config);
  if (training.depths == 0) return training;
  training.repeated = is_repeated(recipe, training.depths, stored);
  training.scaling_factor = recipe.mtp.scaling_factor.value_or(
      recipe.model->mtp_loss_scaling_factor.value_or(training.scaling_factor));
  return training;
}

MtpTraining mtp_training(const Recipe& recipe, const NemotronHConfig& config) {
  const ModelSection& model = *recipe.model;
  const std::int64_t depths = wanted_depths(recipe, config);
  if (depths == 0 || model.source != ModelSource::pretrained)
    return mtp_training(recipe, config, std::nullopt);
  require(config.num_nextn_predict_layers > 0, recipe.file, ": ", depths_key, " is ", depths, ", but ",
          model.path, " says that it has no multi-token prediction (num_nextn_predict_layers 0)");
  if (depths == 1) return mtp_training(recipe, config, std::nullopt);
  const HfWeights weights(model.path);
  std::int64_t stored = 0;
  while (weights.has(cat("mtp.layers.", stored * std::ssize(config.mtp_blocks), ".eh_proj.weight"))) ++stored;
  return mtp_training(recipe, config, stored);
}

}  // namespace nemocube

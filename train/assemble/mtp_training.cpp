#include "train/assemble/mtp_training.h"

#include <filesystem>
#include <system_error>

#include "core/log.h"
#include "data/hf/hf_weights.h"
#include "data/safetensors/reader.h"

namespace nemocube {
namespace {

constexpr const char* depths_key = "model.num_nextn_predict_layers";
constexpr const char* repeated_key = "model.mtp_use_repeated_layer";

bool has_factor(const Recipe& recipe) {
  return recipe.model->mtp_loss_scaling_factor || recipe.mtp.scaling_factor;
}

/// A key that says how depths are trained; null: the recipe has none.
const char* key_for_depths(const Recipe& recipe) {
  if (recipe.mtp.scaling_factor) return "mtp.scaling_factor";
  if (recipe.model->mtp_loss_scaling_factor) return "model.mtp_loss_scaling_factor";
  return recipe.model->mtp_use_repeated_layer ? repeated_key : nullptr;
}

std::int64_t wanted_depths(const Recipe& recipe, const ModelConfig& config) {
  if (const auto wish = recipe.model->num_nextn_predict_layers) return *wish;
  const char* const key = key_for_depths(recipe);
  require(
      !key || config.num_nextn_predict_layers > 0, recipe.file, ": ", key ? key : "", " is given, and ",
      depths_key, " is not: want ", depths_key, " 1 or more, or no ", key ? key : "",
      "; the model's config.json says that it has no multi-token prediction (num_nextn_predict_layers 0)");
  return has_factor(recipe) ? config.num_nextn_predict_layers : 0;
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

/// Without weights, as where a run is planned ahead, config.json says how many there are.
std::int64_t stored_depths(const OpenedModel& source) {
  const ModelConfig& config = source.config();
  std::error_code unclear;  // what cannot be reached has its own message
  const auto lacks = [&](const char* file) {
    return !std::filesystem::exists(source.directory() / file, unclear) && !unclear;
  };
  if (lacks(single_file_name) && lacks(index_file_name)) return config.num_nextn_predict_layers;
  const auto has = [&](std::int64_t depth) {
    const TensorName first = depth_name(depth * std::ssize(config.mtp_blocks));
    return source.weights().has(config.text(first / mtp_join / "weight"));
  };
  std::int64_t stored = 0;
  while (has(stored)) ++stored;
  return stored;
}

}  // namespace

MtpTraining mtp_training(const Recipe& recipe, const ModelConfig& config,
                         std::optional<std::int64_t> stored) {
  MtpTraining training;
  training.depths = wanted_depths(recipe, config);
  if (training.depths == 0) {
    if (const char* const key = key_for_depths(recipe))
      log_warning(recipe.file, ": ", key, " has no effect: no depth of multi-token prediction is trained (",
                  depths_key, " is ", recipe.model->num_nextn_predict_layers ? "0" : "absent", ")");
    return training;
  }
  training.repeated = is_repeated(recipe, training.depths, stored);
  training.scaling_factor = recipe.mtp.scaling_factor.value_or(
      recipe.model->mtp_loss_scaling_factor.value_or(training.scaling_factor));
  return training;
}

MtpTraining mtp_training(const Recipe& recipe, const OpenedModel& source) {
  const ModelConfig& config = source.config();
  const ModelSection& model = *recipe.model;
  const std::int64_t depths = wanted_depths(recipe, config);
  if (depths == 0 || model.source != ModelSource::pretrained)
    return mtp_training(recipe, config, std::nullopt);
  require(config.num_nextn_predict_layers > 0, recipe.file, ": ", depths_key, " is ", depths, ", but ",
          model.path, " says that it has no multi-token prediction (num_nextn_predict_layers 0)");
  if (depths == 1) return mtp_training(recipe, config, std::nullopt);
  return mtp_training(recipe, config, stored_depths(source));
}

}  // namespace nemocube

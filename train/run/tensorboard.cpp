#include "train/run/tensorboard.h"

#include <algorithm>

#include "core/error.h"
#include "train/step/step_tensors.h"

namespace nemocube {

std::optional<TensorboardOptions> tensorboard_options(const Recipe& recipe) {
  if (!recipe.tensorboard || !recipe.tensorboard->enabled) return std::nullopt;
  const TensorboardSection& section = *recipe.tensorboard;
  TensorboardOptions o;
  o.folder = section.tensorboard_dir
                 ? std::filesystem::path(*section.tensorboard_dir)
                 : std::filesystem::path(recipe.checkpoint.checkpoint_dir) / "tensorboard";
  o.log_interval = section.tensorboard_log_interval;
  o.log_timers = section.log_timers_to_tensorboard;
  o.log_throughput = section.log_throughput;
  o.log_memory = section.log_memory_to_tensorboard;
  o.log_world_size = section.log_world_size_to_tensorboard;
  o.log_validation_ppl = section.log_validation_ppl_to_tensorboard;
  return o;
}

std::vector<std::pair<std::string, double>> mean_auxiliary_losses(
    const MoeSection& coefficients, const ModelSetup& setup,
    std::span<const std::pair<std::string, double>> losses) {
  const std::vector<std::pair<std::string, double>> known{
      {"aux_loss", coefficients.aux_loss_coeff},
      {"seq_aux_loss", coefficients.seq_aux_loss_coeff},
      {"global_aux_loss", coefficients.global_aux_loss_coeff},
      {"z_loss", coefficients.z_loss_coeff}};
  const std::int64_t repeated = setup.choices.mtp.depths - setup.choices.mtp.stored_depths();
  const auto calls =
      static_cast<double>(setup.expert_layers() + repeated * moe_layers_of_depth(setup.config));
  std::vector<std::pair<std::string, double>> means;
  for (const auto& [name, value] : losses) {
    const auto coefficient = std::ranges::find(known, name, &std::pair<std::string, double>::first);
    expect(coefficient != known.end(), "no coefficient of ", name);
    means.emplace_back(name, value / (coefficient->second * calls));
  }
  return means;
}

}  // namespace nemocube

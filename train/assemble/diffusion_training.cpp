#include "train/assemble/diffusion_training.h"

namespace nemocube {
namespace {
constexpr const char* paradigm_key = "model.dlm_paradigm";
}  // namespace

DiffusionTraining diffusion_training(const Recipe& recipe, const ModelConfig& config) {
  const ModelSection& model = *recipe.model;
  require(config.diffusion || !model.dlm_paradigm, recipe.file, ": ", paradigm_key,
          " is given, but this model denoises nothing; want no such key");
  if (!config.diffusion) return {};
  require(
      model.dlm_paradigm.has_value(), recipe.file, ": ", paradigm_key,
      " is missing: want autoregressive, bidirectional or block_diff, because this model can be trained in "
      "each of these ways (config.json says only how it was last used)");
  DiffusionTraining training{.paradigm = *model.dlm_paradigm};
  if (training.paradigm == Paradigm::block_diff)
    training.block_size = model.block_size.value_or(config.diffusion->block_size);
  return training;
}

std::optional<Corruption> recipe_corruption(const Recipe& recipe, const ModelConfig& config,
                                            const DatasetSection& section) {
  const DiffusionTraining training = diffusion_training(recipe, config);
  if (training.paradigm == Paradigm::autoregressive) return std::nullopt;
  const DllmSection& s = *recipe.dllm;
  Corruption c{.paradigm = training.paradigm,
               .mask_token = s.mask_token_id.value_or(config.diffusion->mask_token_id),
               .eps = s.eps,
               .block_size = s.block_size,
               .half_life_ratio = s.half_life_ratio.value_or(0.25),
               .weight = s.ar_loss_alpha,
               .longest = section.seq_length,
               .seed = static_cast<std::uint64_t>(recipe.seed)};
  require(c.mask_token < config.vocab_size, recipe.file, ": dllm.mask_token_id is ", c.mask_token,
          ", the model's vocabulary has ", config.vocab_size, " tokens; want one of these");
  if (!s.pad_block_size) return c;
  require(!config.eos_token_id.empty(), recipe.file, ": dllm.pad_block_size is ", *s.pad_block_size,
          ", but config.json has no eos_token_id to fill texts with; want no pad_block_size");
  c.fill_multiple = *s.pad_block_size;
  c.fill_token = config.eos_token_id.front();
  return c;
}

}  // namespace nemocube

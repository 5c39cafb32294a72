#include "train/recipe/diffusion_rules.h"

#include "train/recipe/names.h"

namespace nemocube::recipe {
namespace {

void section_rules(const DllmSection& s, Reading& reading) {
  reading.rule(s.mode.has_value(), {"dllm.mode"},
               "is missing; want hybrid (absent means mdlm in AutoModel, of whose models none is here)");
  reading.rule(s.ar_loss_alpha > 0, {"dllm.ar_loss_alpha"},
               "is 0, and the noised tokens would teach nothing; want a positive number, or "
               "model.dlm_paradigm autoregressive");
  reading.rule(!s.half_life_ratio || *s.half_life_ratio > 0, {"dllm.half_life_ratio"},
               "is 0; want a positive number");
  reading.rule(!s.supervise_padding, {"dllm.supervise_padding"},
               "is true, but rows have no padding here whose tokens could be targets; want false");
  if (s.pad_seq_len_divisible) reading.no_effect.emplace_back("dllm.pad_seq_len_divisible");
  if (s.half_life_ratio && !s.block_size) reading.no_effect.emplace_back("dllm.half_life_ratio");
}

}  // namespace

void diffusion_rules(const Recipe& recipe, Reading& reading, RecipeUse use) {
  const std::string key = "model.dlm_paradigm";
  if (recipe.dllm) section_rules(*recipe.dllm, reading);
  if (!recipe.model) return;
  const std::optional<Paradigm> paradigm = recipe.model->dlm_paradigm;
  const bool denoises = paradigm && *paradigm != Paradigm::autoregressive;
  const char* name = name_of_choice(paradigm.value_or(Paradigm::autoregressive));
  if (recipe.model->block_size && paradigm != Paradigm::block_diff)
    reading.no_effect.emplace_back("model.block_size");
  if (use == RecipeUse::evaluate) {
    reading.rule(
        !denoises, {key}, "is ", name,
        ", but what is evaluated here is autoregressive; want autoregressive (validation in training "
        "has the loss of the training)");
    return;
  }
  if (use != RecipeUse::train && use != RecipeUse::plan) return;
  reading.rule(!denoises || recipe.dllm, {key, "dllm"}, "is ", name,
               ", and the section dllm, which says what is noised, is missing; want it, with mode: hybrid");
  reading.rule(denoises || !recipe.dllm, {"dllm", key}, "says what is noised, but model.dlm_paradigm is ",
               paradigm ? name : "absent", "; want bidirectional or block_diff, or no section dllm");
  reading.rule(
      !denoises || recipe.distributed.cp_size == 1, {"distributed.cp_size", key}, "is ",
      recipe.distributed.cp_size, ", but with model.dlm_paradigm ", name,
      " no row is causal in its whole sequence, which the ranks of context parallelism rely on; want "
      "1, or model.dlm_paradigm autoregressive");
  reading.rule(paradigm != Paradigm::bidirectional || !recipe.evaluation.squad_metrics,
               {"evaluation.squad_metrics", key},
               "is true, but answers are generated autoregressively, which model.dlm_paradigm bidirectional "
               "does not train; want false, or block_diff or autoregressive");
  reading.rule(!denoises || !is_benchmark(recipe), {key, "recipe"}, "is ", name,
               ", but a benchmark has mock data, of which nothing is noised; want autoregressive");
}

}  // namespace nemocube::recipe

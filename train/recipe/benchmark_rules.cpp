#include "train/recipe/benchmark_rules.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

#include "train/recipe/files.h"

namespace nemocube {

bool is_benchmark(const Recipe& recipe) {
  const std::string& text = recipe.recipe_class.text;
  return text.substr(text.rfind('.') + 1) == benchmark_class;  // npos + 1 is 0
}

namespace recipe {
namespace {

constexpr std::int64_t most_steps = 2147483647;  // times rows of a step, which are no more, fits 63 bits

/// Words in names of AutoModel's classes that train something else than a model of texts.
struct OtherRecipes {
  std::vector<std::string_view> words;
  const char* what;
};
const OtherRecipes other_recipes[] = {
    {{"VLM", "Multimodal"}, "trains models of texts and images"},
    {{"Distill"}, "trains a model on the outputs of another one"},
    {{"SequenceClassification"}, "trains classifiers"},
    {{"BiEncoder", "CrossEncoder"}, "trains models for retrieval"},
    {{"Eagle", "DSpark", "DFlash", "JetSpec", "Vispec", "Domino"}, "trains drafts for speculative decoding"},
    {{"DiffusionGemma"}, "trains DiffusionGemma"},
};

void refuse_other_recipes(const Recipe& recipe, Reading& reading) {
  const std::string& text = recipe.recipe_class.text;
  const auto named = [&](std::string_view word) { return text.find(word) != text.npos; };
  for (const OtherRecipes& other : other_recipes)
    reading.rule(std::ranges::none_of(other.words, named), {"recipe"}, "is ", text, ", which ", other.what,
                 "; want TrainFinetuneRecipeForNextTokenPrediction, DiffusionLMSFTRecipe or ",
                 benchmark_class);
}

void not_a_benchmark(Recipe& recipe, Reading& reading) {
  refuse_other_recipes(recipe, reading);
  for (const char* key : {"benchmark.warmup_steps", "benchmark.json_output_path"})
    if (reading.given(key)) reading.no_effect.emplace_back(key);
  if (!recipe.recipe_class.text.empty()) reading.no_effect.emplace_back("recipe");
  recipe.benchmark = {};
  recipe.recipe_class = {};
}

/// What the recipe asks for and a benchmark does not do.
void leave_out(Recipe& recipe, Reading& reading) {
  const auto list = [&](bool asked, const char* key) {
    if (asked && reading.find(key) != nullptr) reading.no_effect.emplace_back(key);
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  list(recipe.lr_scheduler.has_value(), "lr_scheduler");
  recipe.lr_scheduler.reset();
  list(recipe.clip_grad_norm.max_norm != infinity && recipe.clip_grad_norm.max_norm != 0, "clip_grad_norm");
  recipe.clip_grad_norm.max_norm = infinity;
  list(recipe.checkpoint.enabled, "checkpoint");
  recipe.checkpoint.enabled = false;
  recipe.checkpoint.restore_from.reset();
  recipe.checkpoint.best_metric_key = CheckpointSection{}.best_metric_key;
  for (const auto& [name, section] : recipe.validation_datasets) reading.no_effect.push_back(section.key);
  recipe.validation_datasets.clear();
  list(recipe.early_stopping.has_value(), "early_stopping");
  recipe.early_stopping.reset();
  list(recipe.tensorboard.has_value(), "tensorboard");
  recipe.tensorboard.reset();
  list(recipe.evaluation.squad_metrics, "evaluation");
  recipe.evaluation = {};
  list(recipe.step_scheduler.num_epochs.has_value(), "step_scheduler.num_epochs");
  recipe.step_scheduler.num_epochs.reset();
  list(recipe.dataloader.shuffle, "dataloader.shuffle");
  recipe.dataloader.shuffle = false;
  const std::int64_t rows =
      recipe.step_scheduler.max_steps.value_or(0) * recipe.step_scheduler.global_batch_size;
  if (!recipe.dataset || rows == 0) return;
  list(recipe.dataset->num_samples != rows, "dataset.num_samples");
  list(recipe.dataset->limit_dataset_samples.has_value(), "dataset.limit_dataset_samples");
  recipe.dataset->num_samples = rows;
  recipe.dataset->limit_dataset_samples.reset();
}

void want_benchmark(const Recipe& recipe, Reading& reading) {
  const std::string is = "is a benchmark (`recipe`)";
  if (recipe.dataset)
    reading.rule(recipe.dataset->kind == DatasetKind::mock, {"dataset._target_", "recipe"}, "is ",
                 name_of_choice(recipe.dataset->kind), ", but this recipe ", is,
                 "; want mock_iterable_dataset, whose rows all have one length");
  reading.rule(recipe.packed_sequence.packed_sequence_size == 0,
               {"packed_sequence.packed_sequence_size", "recipe"}, "is ",
               recipe.packed_sequence.packed_sequence_size, ", but this recipe ", is, "; want 0");
  const auto& steps = recipe.step_scheduler.max_steps;
  reading.rule(steps.has_value(), {"step_scheduler.max_steps", "recipe"}, "is missing; this recipe ", is,
               ", which runs so many steps");
  reading.rule(!steps || *steps <= most_steps, {"step_scheduler.max_steps"}, "is ", steps.value_or(0),
               "; a benchmark runs at most ", most_steps, " steps");
  const std::int64_t warmup = recipe.benchmark.warmup_steps->value_or(0);
  reading.rule(!steps || warmup < *steps, {"benchmark.warmup_steps", "step_scheduler.max_steps"}, "is ",
               warmup, ", which leaves none of ", steps.value_or(0),
               " steps (step_scheduler.max_steps) to measure");
}

}  // namespace

void benchmark_rules(Recipe& recipe, Reading& reading, RecipeUse use) {
  if (!is_benchmark(recipe)) return not_a_benchmark(recipe, reading);
  if (use != RecipeUse::train && use != RecipeUse::plan) return;
  if (!recipe.benchmark.warmup_steps) recipe.benchmark.warmup_steps = 0;
  want_benchmark(recipe, reading);
  if (recipe.step_scheduler.max_steps.value_or(1) <= most_steps) leave_out(recipe, reading);
}

void take_vocabulary_of_model(Recipe& recipe, Reading& reading) {
  std::error_code unclear;  // a model that is not there has its own message
  if (!recipe.model || !recipe.dataset || !std::filesystem::exists(recipe.model->path, unclear)) return;
  reading.attempt("model", [&] {
    recipe.model->known_config = config_of_model(recipe);
    recipe.dataset->vocab_size = recipe.model->known_config->vocab_size;
  });
}

}  // namespace recipe
}  // namespace nemocube

#include "train/run/carried_files.h"

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/recipe/files.h"

namespace nemocube {
namespace {

using FileTexts = std::map<std::string, std::string>;

constexpr const char* generation_file = "generation_config.json";

// A model trained with a tokenizer from elsewhere is saved with it.
void carry_tokenizer(const Recipe& recipe, FileTexts& files) {
  std::erase_if(files, [](const auto& file) { return is_tokenizer_file(file.first); });
  files.merge(tokenizer_files(recipe, *recipe.dataset));
}

// A run that begins with an adapter goes on with the ids that end its texts.
void carry_stop_ids(const Recipe& recipe, FileTexts& files) {
  const ModelAndAdapter begun = model_and_adapter(recipe);
  if (begun.generation_folder() == begun.model) return;
  FileTexts own = read_companion_files(begun.generation_folder());
  if (const auto found = own.find(generation_file); found != own.end())
    files[generation_file] = std::move(found->second);
}

// Chat rows may teach the model to end its turns with a token that does not end its texts yet.
std::string carry_end_of_turn(const Recipe& recipe, const Tokenizer& tokenizer, const ModelConfig& config,
                              FileTexts& files) {
  auto end = recipe_end_of_turn(recipe, *recipe.dataset, tokenizer, config);
  if (!end) return "";
  std::string warning = end->warning(*recipe.dataset, tokenizer);
  end->stop_ids.push_back(end->id);
  std::string& text = files[generation_file];
  text = with_end_of_text_ids(text, config, end->stop_ids);
  return warning;
}

}  // namespace

std::string carry_files(const Recipe& recipe, const std::optional<Tokenizer>& tokenizer,
                        const ModelConfig& config, std::map<std::string, std::string>& files) {
  if (tokenizer) carry_tokenizer(recipe, files);
  carry_stop_ids(recipe, files);
  return tokenizer ? carry_end_of_turn(recipe, *tokenizer, config, files) : "";
}

}  // namespace nemocube

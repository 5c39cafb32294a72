#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "parallel/comm/world.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// What a command reads, each rank for itself.
struct Inputs {
  std::string name;                       ///< of `text` in messages: "the recipe"
  std::string text;                       ///< lines "name: value"
  std::set<std::filesystem::path> files;  ///< whose contents count
  /// debug.allow_differing_instruction_sets; absent for a command without a recipe
  std::optional<bool> allow_differing_machines = {};
};
/// The files of a model: configuration, tokenizer, weights.
std::set<std::filesystem::path> files_of_model(const std::filesystem::path& model);

/// Throws Error on every rank, naming a rank that runs another program, has other settings (rank_settings.h),
/// another recipe or command line, or reads other files: such ranks would compute something else without a word,
/// or wait for each other. Of large files the first and last MiB are compared. All ranks together, before they form
/// groups; nothing happens on one rank.
void want_same_inputs(const World& world, const Inputs& inputs);

/// The same for the recipe and the files of its model, its data and their tokenizers. `use`: to train reads all data
/// sets, to evaluate those of validation.
/// `adapter`: a directory that is read as well; empty: none.
void want_same_inputs(const World& world, const Recipe& recipe, RecipeUse use,
                      const std::filesystem::path& adapter = {});

}  // namespace nemocube

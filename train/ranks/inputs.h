#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "data/datasets/dataset.h"
#include "parallel/comm/world.h"
#include "train/datasets/row_inputs.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The inputs of a command, which each rank reads for itself.
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
/// another recipe or command line, or reads other files: such ranks would silently compute something else, or
/// wait for each other. Files are compared by sampled_sum(). All ranks together, before they form groups;
/// nothing happens on one rank.
void want_same_inputs(const World& world, const Inputs& inputs);

/// The same for the recipe, the files of its model and its data, and tokenizer_inputs() of its data
/// sets. `use`: training reads all data sets, evaluation only validation sets. `adapter`: a
/// directory that is read as well; empty: none.
void want_same_inputs(const World& world, const Recipe& recipe, RecipeUse use,
                      const std::filesystem::path& adapter = {});

/// Throws Error on every rank, naming the difference and the ranks, unless all have made the same data set:
/// the same files, by the sums of the passes that have read them, and the same sampled rows (sampled_rows()).
/// All ranks together; nothing happens on one rank. Null: one rank.
void want_same_data(Communicator* group, const DatasetSection& section, const Dataset& dataset);

/// The present moment of rank 0, on all ranks: clocks and zones of machines differ.
Moment moment_of_rank_0(Communicator* group);

}  // namespace nemocube

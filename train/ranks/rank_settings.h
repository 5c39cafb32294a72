#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Settings that each rank has from outside of the recipe. Ranks that differ in such settings would silently
/// train another model, or call different collectives.
namespace nemocube {

struct RankSetting {
  std::string name;   ///< "the environment variable X", "the instruction set of oneDNN (...)"
  std::string value;  ///< for a message: the rank's value
  /// The setting changes rounding only: debug.allow_differing_instruction_sets lets ranks differ in it.
  bool of_machine = false;
};

/// The settings of this process, in an order that is the same on all ranks: the variables of
/// environment_variables (core/environment.h) that matter; instruction set, hints and arithmetic of oneDNN,
/// which its variables and the CPU decide; the instruction sets of the program's own code and of the C
/// library. To be called when the variables that the recipe sets are set.
std::vector<RankSetting> settings_of_this_rank();

/// A message about settings that are not the same on all ranks, or "" when all agree:
///     the environment variable X is not the same on all ranks: rank 1 has '2'; ranks 0, 2 and 3 have none
/// `of_ranks`: the settings of each rank. `allow_differing_machines`: the key of the recipe; absent where a
/// command has no recipe, and the message then does not name the key.
std::string differing_settings(std::span<const std::vector<RankSetting>> of_ranks,
                               std::optional<bool> allow_differing_machines);

}  // namespace nemocube

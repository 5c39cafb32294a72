#pragma once
#include <set>
#include <string>
#include <vector>

#include "model/config.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The adapters that the section `peft` of a recipe asks for.
struct ChosenAdapters {
  LoraAdapters adapters;              ///< for ModelChoices::lora
  std::vector<std::string> lines;     ///< the modules that each pattern fits, for the log
  std::vector<std::string> warnings;  ///< where a setting does something unexpected
};

/// The patterns of `peft` (ModulePattern) look at the linear layers of the model and at each module of routed
/// experts, "....mixer.experts", which stands for both of its stacks:
///
///     target_modules                   modules that fit; without any of the three keys "*_proj"
///     exclude_modules                  every linear layer without a match, lm_head too; no routed experts
///     match_all_linear                 every linear layer, lm_head too; no routed experts
///
/// pre: at most one of the keys is given (rules.cpp). Throws Error for a
/// pattern that fits nothing, naming modules with similar names, and for a
/// rank of experts below 1 (moe_rank_scaling).
/// Source: nemo_automodel/components/_peft/module_matcher.py and lora.py.
ChosenAdapters choose_adapters(const ModelSetup& setup, const PeftSection& peft, std::uint64_t dropout_seed);

/// A warning that PEFT refuses some of the adapters (docs/adapters.md), with the line of a recipe that leaves
/// them out; empty where PEFT loads all of them.
std::string warning_of_peft(const ModelSetup& setup, const PeftSection& peft, const LoraAdapters& adapters);

/// Applies the settings of `peft` besides modules: dtype, law, dropout.
void apply_settings(LoraAdapters& adapters, const PeftSection& peft, std::uint64_t dropout_seed);

/// Whether an adapter is trained.
bool trains_adapters(const ModelSetup& setup);

/// The names of all that is no adapter and no buffer, for ModelChoices::frozen.
std::set<TensorName> base_parameters(const ModelSetup& setup);

}  // namespace nemocube

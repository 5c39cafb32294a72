#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/recipe/recipe.h"

/// Environment variables: their settings for a run, and the variables that the recipe sets.
///
/// A setting comes from the first of these that has it:
///   1. a variable that is set where the program is started, also where the recipe wants another value
///   2. dist_env.runtime_env
///   3. a key of dist_env that is named after a variable; null does not count
///   4. the recipe's other keys
/// Variables that are switches are true for 1, true, yes and on, and false for 0, false, no, off and no text.
/// Source: NeMo AutoModel's pull request 1305 (init_utils.py).
namespace nemocube {

namespace recipe {

/// A key of dist_env that is named after a variable: the name of the variable is the key in capital letters.
struct NamedVariable {
  const char* key;
  std::optional<VariableText> DistEnvSection::*member;
  const char* meaning;
  bool is_switch = true;
};
inline constexpr std::array named_variables{
    NamedVariable{"torch_nccl_use_comm_nonblocking", &DistEnvSection::torch_nccl_use_comm_nonblocking,
                  "a variable of PyTorch, which is set; nothing in this build reads it", false},
    NamedVariable{"pytorch_alloc_conf", &DistEnvSection::pytorch_alloc_conf,
                  "a variable of PyTorch, which is set; nothing in this build reads it", false},
    NamedVariable{"nemotronh_ep_use_deepep_dispatch", &DistEnvSection::nemotronh_ep_use_deepep_dispatch,
                  "true: dispatcher alltoall; false: dispatcher allgather, ahead of model.backend"},
    NamedVariable{"nemotronh_ep_require_deepep", &DistEnvSection::nemotronh_ep_require_deepep,
                  "the run ends at once unless the dispatcher is alltoall"},
    NamedVariable{"nemotronh_ep_physical_partition", &DistEnvSection::nemotronh_ep_physical_partition,
                  "a rank holds its own experts alone; here it always does"},
    NamedVariable{"nemotronh_ep_sync_inactive_experts", &DistEnvSection::nemotronh_ep_sync_inactive_experts,
                  "ranks whose experts have no tokens take part in every exchange; here they always do"},
    NamedVariable{"nemotronh_ep_expert_reshard_after_forward",
                  &DistEnvSection::nemotronh_ep_expert_reshard_after_forward,
                  "as distributed.moe.reshard_after_forward, and ahead of it"},
    NamedVariable{"nemoautomodel_pp_skip_output_merge", &DistEnvSection::nemoautomodel_pp_skip_output_merge,
                  "the last stage does not put the logits of its microbatches together; here it never does"}};
std::string variable_of(std::string_view key);  ///< "PYTORCH_ALLOC_CONF" for "pytorch_alloc_conf"

/// Whether a text can name a variable: letters, digits and '_', no digit in front.
bool is_variable_name(std::string_view name);
/// The value of a switch, or nothing for other words; upper and lower case are the same.
std::optional<bool> parse_switch(std::string_view text);
inline constexpr const char* switch_words = "1, true, yes or on, or 0, false, no or off";

}  // namespace recipe

/// The settings of a run, from keys and variables together.
struct ParallelSettings {
  /// `local` exactly where no token leaves its rank: ep_size and expert_tp_size are 1.
  DispatcherKind dispatcher = DispatcherKind::local;
  std::optional<bool> expert_reshard_after_forward = {};  ///< absent: as the other weights
  TpCrossEntropy tp_cross_entropy = TpCrossEntropy::automatic;
  std::optional<BlockWeights> block_weights = {};  ///< absent: stages of equal numbers of blocks
  bool refuse_underfill = false;  ///< fewer microbatches than stages are an Error rather than a warning
};

struct Environment {
  ParallelSettings settings;
  /// Variables that the recipe sets, with their values: set_variables().
  std::vector<std::pair<std::string, std::string>> to_set;
  /// Messages for the log, once: variables that are kept, and settings that differ from the recipe's.
  std::vector<std::string> notes;
};

/// The value of a variable of the process; null when it is not set.
using GetVariable = std::function<const char*(const char* name)>;

/// The settings of `recipe` and the environment. Throws Error naming variable or key for a value that a
/// setting does not have, for a dispatcher that contradicts nemotronh_ep_require_deepep, and for the
/// dispatcher `local` where tokens must leave their ranks.
///
///   NEMOTRONH_TP_PARALLEL_CE        false: off; true: as the two below say, with auto in place of a
///                                   recipe's off
///   NEMOTRONH_TP_PARALLEL_CE_IMPL   native, te (or fused), auto, off; ahead of distributed.tp_cross_entropy
///   NEMOAUTOMODEL_PP_BLOCK_WEIGHTS  parse_block_weights(); ahead of distributed.pipeline.block_weights
///   NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL, NEMOAUTOMODEL_PP_ALLOW_UNDERFILL
///                                   refuse_underfill is true where the first is and the second is not
/// NEMOAUTOMODEL_FILTER_WARNINGS, which silences Python's warnings, has no effect.
Environment resolve_environment(const Recipe& recipe, const GetVariable& get_variable);
/// The same with the environment of this process.
Environment resolve_environment(const Recipe& recipe);

/// Sets the variables for libraries that are loaded later. Not while other threads run.
void set_variables(const Environment& environment);

}  // namespace nemocube

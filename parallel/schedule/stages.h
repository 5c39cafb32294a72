#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "parallel/schedule/schedules.h"

/// Which blocks a pipeline stage holds.
namespace nemocube {

/// The number of stages of a model on pp ranks.
///
///   without layers_per_stage   pp with gpipe and 1f1b, 2 pp with the others
///   with                       ceil(blocks / layers_per_stage); where that is no multiple of pp, the next
///                              one above (`round` is "up") or below ("down")
///
/// `round` is the setting round_virtual_stages_to_pp_multiple; empty: no rounding. `unit` is the
/// word in messages for the counted things: "block" or "layer". Error for sizes below 1, for any
/// other `round`, for a number that is no multiple of pp, and for a number of stages for each rank
/// that the schedule does not take (check_chunks).
std::int64_t count_stages(ScheduleKind kind, std::int64_t pp, std::int64_t blocks,
                          std::optional<std::int64_t> layers_per_stage = {}, std::string_view round = {},
                          const char* unit = "block");

/// Blocks divided as even_begin() does it. Embeddings and head do not count. Error unless
/// 1 <= stages <= blocks.
std::vector<ModelChunk> even_stages(std::int64_t blocks, std::int64_t stages, const char* unit = "block");

/// Time of a block of each kind, of the embeddings, and of final norm, head and loss, relative to each other.
/// Defaults: as the kinds say (BlockType::pipeline_weight), which are NeMo AutoModel's.
struct BlockWeights {
  BlockWeights();
  std::vector<double> kinds;  ///< in the order of block_kinds()
  double embeddings = 0, head = 0;

  double& of(BlockKind kind);
  double of(BlockKind kind) const;
  bool operator==(const BlockWeights&) const = default;
};

/// "moe=3,attention=2": the value of NEMOAUTOMODEL_PP_BLOCK_WEIGHTS. Names are those of the kinds,
/// "embeddings" and "head"; ':' may stand for '=', spaces around words are skipped, and names that are left
/// out keep their default. Error naming the part that has another form, an unknown name, a name given twice,
/// or a weight that is negative or no finite number.
BlockWeights parse_block_weights(std::string_view text);

/// Stages of about equal weight. The target of stage i is the remaining weight divided by the remaining
/// stages. The stage ends where its sum is nearest to the target, at the earlier block of two equally near
/// ones. Every stage gets at least one block. Error unless 1 <= stages <= blocks.
std::vector<ModelChunk> weighted_stages(std::span<const BlockKind> blocks, std::int64_t stages,
                                        const BlockWeights& weights = {});

struct ManualStages {
  std::vector<ModelChunk> stages;
  std::vector<std::string> skipped;  ///< entries that have no parameters, for a line in the log
};

/// The module names that lists of stages contain, as people spell them (data/hf/module_names.h).
struct StageModules {
  ModelNames names;  ///< spell the others
  /// embeddings_name(), final_norm_name(), head_name(), or block_name(i) for layer i of the model's files
  /// (LayerSlot); nothing for any other name.
  std::function<std::optional<TensorName>(std::string_view name)> find;
  std::function<bool(std::string_view name)> has_no_parameters;  ///< such modules may be anywhere
  std::string wanted;                                            ///< all of them, for messages
};

/// Stages as the setting module_fqns_per_model_part lists them, one list of module names for each stage. The
/// order within a list means nothing.
///
/// Error naming list and module: no lists, a list without parameters, an unknown module, a module in two
/// places or in none, blocks that do not ascend from list to list, embeddings outside of the first list,
/// final norm or lm_head outside of the last one.
ManualStages manual_stages(const std::vector<std::vector<std::string>>& parts, std::int64_t blocks,
                           const StageModules& known);

}  // namespace nemocube

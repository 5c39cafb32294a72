#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/data_parallel/flat_unit.h"
#include "parallel/expert_parallel/make_dispatcher.h"
#include "parallel/schedule/stages.h"

/// The sections of a recipe that say how ranks share the work.
namespace nemocube {

/// The dtypes of FSDP2's mixed precision. They describe what the program does anyway: weight_dtype().
struct PrecisionSection {
  std::optional<DType> param_dtype, reduce_dtype;
};

enum class Round { up, down };
/// Stages and schedule of a pipeline. parallel/schedule/ says what they mean.
struct PipelineSection {
  std::string pp_schedule = "1f1b";            ///< as written: parse_schedule_kind() knows the name
  std::optional<std::string> pp_schedule_csv;  ///< a file of actions, which replaces pp_schedule
  std::int64_t pp_microbatch_size = 1;         ///< rows
  std::optional<std::int64_t> layers_per_stage;
  std::optional<Round> round_virtual_stages_to_pp_multiple;
  /// The names of the modules of each stage; empty: stages are made by the other keys.
  std::vector<std::vector<std::string>> module_fqns_per_model_part;
  std::optional<BlockWeights> block_weights;  ///< absent: stages of equal numbers of blocks
};

/// ParallelSettings of experts on several ranks.
struct MoeParallelSection {
  std::optional<bool> reshard_after_forward;  ///< of the experts' weights; absent: as the other weights
};

/// How vocabulary-parallel ranks compute the loss. `off`: they gather the logits.
enum class TpCrossEntropy { automatic, native, fused, off };

/// The plan of tensor parallelism that a recipe gives; empty: the family's own alone.
struct TensorPlanSection {
  std::string name;  ///< of a family's own plan (Family::tp_plans), which then is the plan
  /// Patterns of module names with their words, in order, ahead of the family's own plan.
  std::vector<std::pair<std::string, std::string>> rules;
  std::string file;  ///< that the rules were read from
  bool operator==(const TensorPlanSection& other) const { return name == other.name && rules == other.rules; }
};

enum class Strategy { fsdp2, megatron_fsdp, ddp };
/// rank_sizes() (train/ranks/rank_sizes.h) says what the sizes and the strategy mean on a number of ranks.
struct DistributedSection {
  Strategy strategy = Strategy::fsdp2;
  std::optional<std::int64_t> dp_size, dp_replicate_size;
  std::int64_t tp_size = 1, pp_size = 1, cp_size = 1, ep_size = 1, expert_tp_size = 1;
  bool sequence_parallel = false;  ///< false with one tensor-parallel rank, whatever the recipe says
  TensorPlanSection tp_plan;
  TpCrossEntropy tp_cross_entropy = TpCrossEntropy::automatic;  ///< see also ParallelSettings
  ContextAttention cp_comm_type = ContextAttention::ring;
  bool activation_checkpointing = false;
  std::optional<PipelineSection> pipeline;  ///< present exactly where a run has several stages
  MoeParallelSection moe;
  // fsdp2 only
  std::optional<bool> reshard_after_forward;
  bool defer_fsdp_grad_sync = true;
  PrecisionSection mp_policy;
  // megatron_fsdp only
  ZeroLevel zero_dp_strategy = ZeroLevel::parameters;
  bool overlap_grad_reduce = true, overlap_param_gather = true;
};

/// The value of an environment variable, written in a recipe: true and false are the texts 1 and 0.
struct VariableText {
  std::string text;
  bool operator==(const VariableText&) const = default;
};

enum class CommBackend { nccl, gloo, mpi, gloo_and_nccl };  ///< of CUDA tensors; gloo means MPI
/// resolve_environment() (train/recipe/environment.h) says what the keys named after variables mean.
struct DistEnvSection {
  std::optional<CommBackend> backend;
  double timeout_minutes = 10;  ///< CommOptions::timeout_seconds / 60
  std::optional<VariableText> torch_nccl_use_comm_nonblocking, pytorch_alloc_conf;
  std::optional<VariableText> nemotronh_ep_use_deepep_dispatch, nemotronh_ep_require_deepep;
  std::optional<VariableText> nemotronh_ep_physical_partition, nemotronh_ep_sync_inactive_experts;
  std::optional<VariableText> nemotronh_ep_expert_reshard_after_forward, nemoautomodel_pp_skip_output_merge;
  std::vector<std::pair<std::string, VariableText>> runtime_env;
};

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <string>

#include "parallel/data_parallel/data_parallel.h"
#include "parallel/grid/grid_sizes.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The sizes that a recipe has on a number of ranks.
struct RankSizes {
  GridSizes grid;  ///< kv_replicas and state_replicas are 1: they depend on the model
  /// Data-parallel ranks: dp = dp_shard dp_replicate. Where nothing is divided (DDP), dp_shard is 1.
  std::int64_t dp = 1, dp_shard = 1, dp_replicate = 1;
  DataParallelOptions options;
  /// For logs: "4 ranks: fsdp2 (ZeRO-3), dp_shard 2 x dp_replicate 2", with the sizes of the grid in front of
  /// dp_shard where any but dp is above 1.
  std::string text;
};

/// Throws Error, with the given and the right numbers, when the sizes of the
/// recipe do not give this number of ranks.
///
///   dp = ranks / (tp_size cp_size pp_size)           must be whole, and equal dp_size where given
///   ep_size expert_tp_size                           divides tp_size cp_size dp
///   fsdp2          ZeRO-3; dp_replicate_size divides dp and is smaller, unless it is 1
///   megatron_fsdp  as zero_dp_strategy says; from ZeRO-2 on gradients are reduced after every microbatch
///   ddp            nothing is divided
/// dp_shard cp ranks divide parameters, expt_dp ranks divide parameters of experts. Where each of these
/// groups is one rank, nothing is divided, with any strategy. With a pipeline, gathered weights stay until
/// the step ends unless reshard_after_forward is given.
/// Sources: NeMo AutoModel, mesh_utils.py (sizes); PyTorch FSDP2 and Megatron-FSDP (when to reduce).
RankSizes rank_sizes(const DistributedSection& section, std::int64_t ranks);

/// A warning about a pipeline with fewer microbatches in a step than stages, whose ranks are idle most of the
/// time; empty for other pipelines. Every schedule runs with any number of microbatches. With `refuse`
/// (ParallelSettings::refuse_underfill) throws Error instead.
std::string underfill_warning(std::int64_t microbatches, std::int64_t stages, bool refuse);

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <string>

#include "parallel/data_parallel/data_parallel.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// What a recipe means on a number of ranks.
struct RankPlan {
  /// Data-parallel ranks: dp = dp_shard dp_replicate. Where nothing is divided (DDP), dp_shard is 1.
  std::int64_t dp = 1, dp_shard = 1, dp_replicate = 1;
  DataParallelOptions options;
  std::string text;  ///< for logs: "4 ranks: fsdp2 (ZeRO-3), dp_shard 2 x dp_replicate 2"
};

/// Throws Error when the sizes of the recipe do not give this number of ranks.
///
///   dp = ranks / (tp_size pp_size cp_size)           must be whole, and dp_size where that is given
///   fsdp2          ZeRO-3; dp_replicate_size divides dp and is smaller, unless it is 1
///   megatron_fsdp  as zero_dp_strategy says; from ZeRO-2 on gradients are reduced after every microbatch
///   ddp            nothing is divided
/// One data-parallel rank has nothing to divide, whatever the strategy.
/// Sources: NeMo AutoModel, mesh_utils.py (sizes); PyTorch FSDP2 and Megatron-FSDP (when to reduce).
RankPlan plan_ranks(const DistributedSection& section, std::int64_t ranks);

}  // namespace nemocube

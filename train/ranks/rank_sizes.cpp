#include "train/ranks/rank_sizes.h"

#include "core/error.h"
#include "parallel/expert_parallel/expert_groups.h"
#include "train/recipe/names.h"

namespace nemocube {
namespace {

std::int64_t data_parallel_ranks(const DistributedSection& s, std::int64_t ranks) {
  const std::int64_t others = s.tp_size * s.cp_size * s.pp_size;
  const std::int64_t below = ranks / others * others;
  require(ranks % others == 0, "distributed: world_size (", ranks,
          ") must be divisible by (tp_size * cp_size * pp_size) (", s.tp_size, " * ", s.cp_size, " * ",
          s.pp_size, " = ", others, "); start ", below > 0 ? cat(below, " or ") : "", below + others,
          " ranks (mpirun -n)");
  const std::int64_t dp = ranks / others;
  require(s.dp_size.value_or(dp) == dp, "distributed.dp_size is ", s.dp_size.value_or(dp), ", but ", ranks,
          ranks == 1 ? " rank was" : " ranks were", " started, which makes ", dp, " data-parallel ",
          dp == 1 ? "rank" : "ranks", "; start another number of ranks (mpirun -n), or leave dp_size out");
  return dp;
}

void check_experts(const DistributedSection& s, std::int64_t ranks_of_stage) {
  const std::int64_t experts = s.ep_size * s.expert_tp_size;
  if (ranks_of_stage % experts == 0) return;
  const bool tp_fits = ranks_of_stage % s.expert_tp_size == 0;
  fail("distributed: the ranks of a pipeline stage, tp_size * cp_size * dp (", s.tp_size, " * ", s.cp_size,
       " * ", ranks_of_stage / (s.tp_size * s.cp_size), " = ", ranks_of_stage,
       "), must be a multiple of ep_size * expert_tp_size (", s.ep_size, " * ", s.expert_tp_size, " = ",
       experts, "); want ", tp_fits ? "an ep_size" : "an expert_tp_size", " of ",
       divisors_of(tp_fits ? ranks_of_stage / s.expert_tp_size : ranks_of_stage));
}

std::int64_t replicas(const DistributedSection& s, std::int64_t dp) {
  const std::int64_t replicas = s.dp_replicate_size.value_or(1);
  require(dp % replicas == 0, "distributed.dp_replicate_size is ", replicas,
          "; want a divisor of the number of data-parallel ranks, ", dp);
  require(replicas < dp || replicas == 1, "distributed.dp_replicate_size is ", replicas,
          ", the number of data-parallel ranks, so none would be left to shard over; want a smaller size, or "
          "strategy: ddp");
  return replicas;
}

ZeroLevel level_of(const DistributedSection& s) {
  switch (s.strategy) {
    case Strategy::fsdp2:
      return ZeroLevel::parameters;
    case Strategy::megatron_fsdp:
      return s.zero_dp_strategy;
    case Strategy::ddp:
      break;
  }
  return ZeroLevel::none;
}

}  // namespace

RankSizes rank_sizes(const DistributedSection& s, std::int64_t ranks) {
  RankSizes sizes;
  sizes.dp = data_parallel_ranks(s, ranks);
  check_experts(s, ranks / s.pp_size);
  const std::int64_t dp_replicate = replicas(s, sizes.dp);
  GridSizes& grid = sizes.grid;
  grid = {.tp = s.tp_size,
          .cp = s.cp_size,
          .dp_shard = sizes.dp,
          .dp_replicate = 1,
          .pp = s.pp_size,
          .expt_tp = s.expert_tp_size,
          .ep = s.ep_size};
  const bool alone = sizes.dp * grid.cp == 1 && grid.expt_dp() == 1;
  sizes.options.level = alone ? ZeroLevel::none : level_of(s);
  const bool divided = sizes.options.level != ZeroLevel::none;
  sizes.dp_replicate = grid.dp_replicate = divided ? dp_replicate : sizes.dp;
  sizes.dp_shard = grid.dp_shard = sizes.dp / sizes.dp_replicate;

  const bool megatron = s.strategy == Strategy::megatron_fsdp;
  sizes.options.reduce_last_only =
      !divided || (megatron ? sizes.options.level < ZeroLevel::gradients : s.defer_fsdp_grad_sync);
  sizes.options.reshard_after_forward = s.reshard_after_forward.value_or(s.pp_size == 1);
  sizes.options.overlap = s.overlap_grad_reduce;

  sizes.text = ranks == 1 ? "1 rank" : cat(ranks, " ranks: ", recipe::name_of_choice(s.strategy));
  if (divided) sizes.text += cat(" (ZeRO-", static_cast<int>(sizes.options.level), ")");
  if (sizes.dp < ranks || grid.ep * grid.expt_tp > 1) sizes.text += cat(", ", to_string(grid));
  if (sizes.dp > 1) sizes.text += cat(", dp_shard ", sizes.dp_shard, " x dp_replicate ", sizes.dp_replicate);
  return sizes;
}

std::string underfill_warning(std::int64_t microbatches, std::int64_t stages, bool refuse) {
  if (microbatches >= stages) return "";
  const std::string text =
      cat("a step has ", microbatches, microbatches == 1 ? " microbatch" : " microbatches", " for ", stages,
          " pipeline stages, so ranks are idle most of the time; lower "
          "distributed.pipeline.pp_microbatch_size, or "
          "raise step_scheduler.global_batch_size");
  require(!refuse, text,
          ". The environment variable NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL makes this an error");
  return text;
}

}  // namespace nemocube

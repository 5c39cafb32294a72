#include "train/loop/rank_plan.h"

#include "core/error.h"
#include "train/recipe/names.h"

namespace nemocube {
namespace {

std::int64_t data_parallel_ranks(const DistributedSection& s, std::int64_t ranks) {
  const std::int64_t others = s.tp_size * s.pp_size * s.cp_size;
  require(ranks % others == 0, "distributed: world size (", ranks,
          ") must be divisible by tp_size * pp_size * cp_size (", s.tp_size, " * ", s.pp_size, " * ",
          s.cp_size, " = ", others, ")");
  const std::int64_t dp = ranks / others;
  require(s.dp_size.value_or(dp) == dp, "distributed.dp_size is ", s.dp_size.value_or(dp), ", but ", ranks,
          ranks == 1 ? " rank was" : " ranks were", " started, which makes ", dp, " data-parallel ",
          dp == 1 ? "rank" : "ranks", "; start another number of ranks (mpirun -n), or leave dp_size out");
  return dp;
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

RankPlan plan_ranks(const DistributedSection& s, std::int64_t ranks) {
  RankPlan plan;
  plan.dp = data_parallel_ranks(s, ranks);
  plan.text = ranks == 1 ? "1 rank" : cat(ranks, " ranks: ", recipe::name_of_choice(s.strategy));
  const std::int64_t dp_replicate = replicas(s, plan.dp);
  plan.options.level = plan.dp == 1 ? ZeroLevel::none : level_of(s);
  const bool megatron = s.strategy == Strategy::megatron_fsdp;
  plan.options.reduce_last_only =
      megatron ? plan.options.level < ZeroLevel::gradients : s.defer_fsdp_grad_sync;
  plan.options.reshard_after_forward = s.reshard_after_forward.value_or(true);
  plan.options.overlap = s.overlap_grad_reduce;
  if (plan.options.level == ZeroLevel::none) {
    plan.dp_replicate = plan.dp;
    plan.options.reduce_last_only = true;
  } else {
    plan.dp_replicate = dp_replicate;
    plan.dp_shard = plan.dp / dp_replicate;
    plan.text += cat(" (ZeRO-", static_cast<int>(plan.options.level), ")");
  }
  if (plan.dp > 1) plan.text += cat(", dp_shard ", plan.dp_shard, " x dp_replicate ", plan.dp_replicate);
  return plan;
}

}  // namespace nemocube

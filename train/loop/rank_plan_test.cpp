#include "train/loop/rank_plan.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace nemocube;

TEST_CASE("rank plan: fsdp2") {
  DistributedSection s;
  RankPlan plan = plan_ranks(s, 1);
  CHECK(plan.text == "1 rank");
  CHECK(plan.options.level == ZeroLevel::none);
  plan = plan_ranks(s, 4);
  CHECK(plan.text == "4 ranks: fsdp2 (ZeRO-3), dp_shard 4 x dp_replicate 1");
  CHECK(plan.dp == 4);
  CHECK(plan.options.level == ZeroLevel::parameters);
  CHECK(plan.options.reduce_last_only);
  CHECK(plan.options.reshard_after_forward);
  CHECK(plan.options.overlap);
  s.dp_size = 4;
  s.dp_replicate_size = 2;
  s.reshard_after_forward = false;
  s.defer_fsdp_grad_sync = false;
  plan = plan_ranks(s, 4);
  CHECK(plan.text == "4 ranks: fsdp2 (ZeRO-3), dp_shard 2 x dp_replicate 2");
  CHECK(plan.dp_shard == 2);
  CHECK(plan.dp_replicate == 2);
  CHECK_FALSE(plan.options.reduce_last_only);
  CHECK_FALSE(plan.options.reshard_after_forward);
}

TEST_CASE("rank plan: megatron_fsdp divides what its level says") {
  DistributedSection s;
  s.strategy = Strategy::megatron_fsdp;
  for (const ZeroLevel level : {ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters}) {
    s.zero_dp_strategy = level;
    const RankPlan plan = plan_ranks(s, 2);
    CHECK(plan.options.level == level);
    CHECK(plan.options.reduce_last_only == (level == ZeroLevel::optimizer));
    CHECK(plan.dp_shard == 2);
  }
  s.overlap_grad_reduce = s.overlap_param_gather = false;
  CHECK_FALSE(plan_ranks(s, 2).options.overlap);
  s.zero_dp_strategy = ZeroLevel::none;
  CHECK(plan_ranks(s, 2).text == "2 ranks: megatron_fsdp, dp_shard 1 x dp_replicate 2");
}

TEST_CASE("rank plan: ddp divides nothing") {
  DistributedSection s;
  s.strategy = Strategy::ddp;
  const RankPlan plan = plan_ranks(s, 3);
  CHECK(plan.text == "3 ranks: ddp, dp_shard 1 x dp_replicate 3");
  CHECK(plan.dp == 3);
  CHECK(plan.options.level == ZeroLevel::none);
  CHECK(plan.options.reduce_last_only);
}

TEST_CASE("rank plan: sizes that do not give the number of ranks") {
  const auto error = [](std::int64_t ranks, auto&& change) -> std::string {
    DistributedSection s;
    change(s);
    try {
      plan_ranks(s, ranks);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error(6, [](auto& s) { s.tp_size = s.pp_size = 2; }) ==
        "distributed: world size (6) must be divisible by tp_size * pp_size * cp_size (2 * 2 * 1 = 4)");
  CHECK(error(8, [](auto& s) { s.tp_size = s.pp_size = s.dp_size.emplace(2); }) == "no error");
  CHECK(error(2, [](auto& s) { s.dp_size = 4; }) ==
        "distributed.dp_size is 4, but 2 ranks were started, which makes 2 data-parallel ranks; start "
        "another number of ranks (mpirun -n), or leave dp_size out");
  CHECK(error(6, [](auto& s) { s.dp_replicate_size = 4; }) ==
        "distributed.dp_replicate_size is 4; want a divisor of the number of data-parallel ranks, 6");
  CHECK(error(4, [](auto& s) {
          s.dp_replicate_size = 4;
        }).starts_with("distributed.dp_replicate_size is 4, the number of data-parallel ranks, so"));
  CHECK(error(1, [](auto& s) { s.dp_replicate_size = 1; }) == "no error");
}

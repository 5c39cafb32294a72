#include "train/ranks/rank_sizes.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace nemocube;

TEST_CASE("rank sizes: fsdp2") {
  DistributedSection s;
  RankSizes sizes = rank_sizes(s, 1);
  CHECK(sizes.text == "1 rank");
  CHECK(sizes.options.level == ZeroLevel::none);
  sizes = rank_sizes(s, 4);
  CHECK(sizes.text == "4 ranks: fsdp2 (ZeRO-3), dp_shard 4 x dp_replicate 1");
  CHECK(sizes.dp == 4);
  CHECK(sizes.options.level == ZeroLevel::parameters);
  CHECK(sizes.options.reduce_last_only);
  CHECK(sizes.options.reshard_after_forward);
  CHECK(sizes.options.overlap);
  s.dp_size = 4;
  s.dp_replicate_size = 2;
  s.reshard_after_forward = false;
  s.defer_fsdp_grad_sync = false;
  sizes = rank_sizes(s, 4);
  CHECK(sizes.text == "4 ranks: fsdp2 (ZeRO-3), dp_shard 2 x dp_replicate 2");
  CHECK(sizes.dp_shard == 2);
  CHECK(sizes.dp_replicate == 2);
  CHECK_FALSE(sizes.options.reduce_last_only);
  CHECK_FALSE(sizes.options.reshard_after_forward);
}

TEST_CASE("rank sizes: megatron_fsdp divides what its level says") {
  DistributedSection s;
  s.strategy = Strategy::megatron_fsdp;
  for (const ZeroLevel level : {ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters}) {
    s.zero_dp_strategy = level;
    const RankSizes sizes = rank_sizes(s, 2);
    CHECK(sizes.options.level == level);
    CHECK(sizes.options.reduce_last_only == (level == ZeroLevel::optimizer));
    CHECK(sizes.dp_shard == 2);
  }
  s.overlap_grad_reduce = s.overlap_param_gather = false;
  CHECK_FALSE(rank_sizes(s, 2).options.overlap);
  s.zero_dp_strategy = ZeroLevel::none;
  CHECK(rank_sizes(s, 2).text == "2 ranks: megatron_fsdp, dp_shard 1 x dp_replicate 2");
}

TEST_CASE("rank sizes: ddp divides nothing") {
  DistributedSection s;
  s.strategy = Strategy::ddp;
  const RankSizes sizes = rank_sizes(s, 3);
  CHECK(sizes.text == "3 ranks: ddp, dp_shard 1 x dp_replicate 3");
  CHECK(sizes.dp == 3);
  CHECK(sizes.options.level == ZeroLevel::none);
  CHECK(sizes.options.reduce_last_only);
}

TEST_CASE("rank sizes: sizes that do not give the number of ranks") {
  const auto error = [](std::int64_t ranks, auto&& change) -> std::string {
    DistributedSection s;
    change(s);
    try {
      rank_sizes(s, ranks);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error(6, [](auto& s) { s.tp_size = s.pp_size = 2; }) ==
        "distributed: world_size (6) must be divisible by (tp_size * cp_size * pp_size) (2 * 1 * 2 = 4); "
        "start 4 "
        "or 8 ranks (mpirun -n)");
  CHECK(error(2, [](auto& s) { s.cp_size = 4; }).ends_with("(1 * 4 * 1 = 4); start 4 ranks (mpirun -n)"));
  CHECK(error(12, [](auto& s) { s.pp_size = 2, s.ep_size = 4; }) ==
        "distributed: the ranks of a pipeline stage, tp_size * cp_size * dp (1 * 1 * 6 = 6), must be a "
        "multiple of "
        "ep_size * expert_tp_size (4 * 1 = 4); want an ep_size of 1, 2, 3 or 6");
  CHECK(error(4, [](auto& s) {
          s.tp_size = s.expert_tp_size = 2, s.ep_size = 4;
        }).ends_with("(4 * 2 = 8); want an ep_size of 1 or 2"));
  CHECK(error(1, [](auto& s) { s.ep_size = 2; }).ends_with("want an ep_size of 1"));
  CHECK(error(4, [](auto& s) { s.expert_tp_size = 3; }).ends_with("want an expert_tp_size of 1, 2 or 4"));
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

TEST_CASE("rank sizes: all dimensions at once") {
  DistributedSection s;
  s.tp_size = s.cp_size = s.pp_size = s.expert_tp_size = 2;
  s.ep_size = 4;
  s.dp_replicate_size = 2;
  const RankSizes sizes = rank_sizes(s, 32);
  CHECK(sizes.grid ==
        GridSizes{.tp = 2, .cp = 2, .dp_shard = 2, .dp_replicate = 2, .pp = 2, .expt_tp = 2, .ep = 4});
  CHECK(sizes.dp == 4);
  CHECK(sizes.text ==
        "32 ranks: fsdp2 (ZeRO-3), tp 2 x cp 2 x dp 4 x pp 2, experts: expt_tp 2 x ep 4 x expt_dp 2, "
        "dp_shard 2 x "
        "dp_replicate 2");
  CHECK(make_grid(sizes.grid).size() == 32);
}

TEST_CASE("rank sizes: context-parallel ranks and replicas of experts divide parameters too") {
  const auto level = [](std::int64_t ranks, auto&& change) {
    DistributedSection s;
    change(s);
    return rank_sizes(s, ranks).options.level;
  };
  CHECK(level(2, [](auto& s) { s.cp_size = 2; }) == ZeroLevel::parameters);
  CHECK(level(2, [](auto& s) { s.tp_size = 2; }) == ZeroLevel::parameters);  // experts, over two ranks
  CHECK(level(2, [](auto& s) { s.tp_size = s.ep_size = 2; }) == ZeroLevel::none);
  CHECK(level(2, [](auto& s) { s.tp_size = s.expert_tp_size = 2; }) == ZeroLevel::none);
  CHECK(level(2, [](auto& s) { s.pp_size = 2; }) == ZeroLevel::none);
  CHECK(level(2, [](auto& s) { s.strategy = Strategy::ddp, s.cp_size = 2; }) == ZeroLevel::none);
}

TEST_CASE("rank sizes: with a pipeline gathered weights stay, unless the recipe says otherwise") {
  DistributedSection s;
  s.pp_size = 2;
  CHECK_FALSE(rank_sizes(s, 4).options.reshard_after_forward);
  CHECK(rank_sizes(s, 4).text ==
        "4 ranks: fsdp2 (ZeRO-3), tp 1 x cp 1 x dp 2 x pp 2, dp_shard 2 x dp_replicate 1");
  s.reshard_after_forward = true;
  CHECK(rank_sizes(s, 4).options.reshard_after_forward);
}

TEST_CASE("rank sizes: fewer microbatches than stages are a warning, or an error where that is wanted") {
  CHECK(underfill_warning(8, 8, true).empty());
  CHECK(underfill_warning(1, 8, false).starts_with("a step has 1 microbatch for 8 pipeline stages, so"));
  CHECK_THROWS_AS(underfill_warning(7, 8, true), Error);
}

#include "parallel/grid/grid_sizes.h"

#include <doctest/doctest.h>

#include <array>

#include "core/error.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("grid sizes: the place of every rank is that of the grid and its views") {
  const GridSizes sizes{.tp = 4,
                        .cp = 2,
                        .dp_shard = 3,
                        .dp_replicate = 2,
                        .pp = 2,
                        .expt_tp = 2,
                        .ep = 6,
                        .kv_replicas = 2,
                        .state_replicas = 4};
  const HypercubeGrid grid = make_grid(sizes);
  REQUIRE(grid.size() == sizes.ranks());
  CHECK(sizes.expt_dp() == 4);
  for (int rank = 0; rank < grid.size(); ++rank) {
    const GridPlace p = place_of(sizes, rank);
    CHECK(grid.coordinates(rank) == std::vector{p.tp, p.cp, p.dp_shard, p.dp_replicate, p.pp});
    CHECK(grid.coordinates(rank, "expert") == std::vector{p.expt_tp, p.ep, p.expt_dp, p.pp});
    CHECK(grid.coordinates(rank, "kv")[0] == p.kv_replica);
    CHECK(grid.coordinates(rank, "state")[0] == p.state_replica);
    CHECK(grid.groups({"dp_shard", "dp_replicate"}).position_of(rank) == p.dp(sizes));
  }
  CHECK(grid.groups({"kv_replica"}, "kv").ranks(1) == std::vector{2, 3});
}

TEST_CASE(
    "grid sizes: a grid that begins at another rank has the same places and groups, so many ranks further") {
  const GridSizes sizes{.tp = 4, .cp = 2, .dp_shard = 3, .pp = 2, .expt_tp = 2, .ep = 6, .kv_replicas = 2};
  constexpr int first = 5;
  GridSizes shifted = sizes;
  shifted.first_rank = first;
  const HypercubeGrid at_0 = make_grid(sizes), grid = make_grid(shifted);
  CHECK(grid.offset() == first);
  CHECK(grid.size() == at_0.size());
  CHECK_FALSE(grid.contains(first - 1));
  CHECK_FALSE(grid.contains(first + grid.size()));
  for (int rank = 0; rank < at_0.size(); ++rank) {
    const GridPlace p = place_of(shifted, rank + first), want = place_of(sizes, rank);
    CHECK(std::array{p.tp, p.cp, p.dp_shard, p.dp_replicate, p.pp} ==
          std::array{want.tp, want.cp, want.dp_shard, want.dp_replicate, want.pp});
    CHECK(std::array{p.expt_tp, p.ep, p.expt_dp, p.kv_replica, p.state_replica} ==
          std::array{want.expt_tp, want.ep, want.expt_dp, want.kv_replica, want.state_replica});
    CHECK(grid.coordinates(rank + first) == at_0.coordinates(rank));
    for (const auto& [names, view] : std::initializer_list<std::pair<std::vector<std::string>, const char*>>{
             {{"tp"}, "base"}, {{"dp_shard", "cp"}, "base"}, {{"ep"}, "expert"}, {{"kv_replica"}, "kv"}}) {
      const RankGroups groups = grid.groups(names, view), before = at_0.groups(names, view);
      CHECK(groups.group_of(rank + first) == before.group_of(rank));
      CHECK(groups.position_of(rank + first) == before.position_of(rank));
      CHECK(groups.rank(groups.group_of(rank + first), 0) == first + before.rank(before.group_of(rank), 0));
    }
  }
  for (const int outside : {first - 1, first + grid.size()})
    CHECK_THROWS_WITH_AS(
        place_of(shifted, outside),
        doctest::Contains(cat("rank ", outside, " is outside of the grid of ranks 5 to 52").c_str()),
        std::logic_error);
  shifted.first_rank = -1;
  CHECK(message_of([&] { make_grid(shifted); }).find("-1") != std::string::npos);
}

TEST_CASE("grid sizes: sizes that make no grid are refused with their numbers") {
  CHECK(message_of([] { make_grid({.tp = 2, .dp_shard = 3, .ep = 4}); }) ==
        "grid: the ranks of a stage, tp * cp * dp (2 * 1 * 3 = 6), must be divisible by expt_tp * ep (1 * 4 "
        "= 4)");
  CHECK(message_of([] { make_grid({.tp = 2, .kv_replicas = 4}); }) ==
        "grid: kv_replicas are 4; want a divisor of tp, 2");
}

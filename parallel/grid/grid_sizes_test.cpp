#include "parallel/grid/grid_sizes.h"

#include <doctest/doctest.h>

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

TEST_CASE("grid sizes: sizes that make no grid are refused with their numbers") {
  CHECK(message_of([] { make_grid({.tp = 2, .dp_shard = 3, .ep = 4}); }) ==
        "grid: the ranks of a stage, tp * cp * dp (2 * 1 * 3 = 6), must be divisible by expt_tp * ep (1 * 4 "
        "= 4)");
  CHECK(message_of([] { make_grid({.tp = 2, .kv_replicas = 4}); }) ==
        "grid: kv_replicas are 4; want a divisor of tp, 2");
}

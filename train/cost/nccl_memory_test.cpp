#include "train/cost/nccl_memory.h"

#include <doctest/doctest.h>

#include "parallel/grid/grid_sizes.h"

using namespace nemocube;

namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;

}  // namespace

TEST_CASE("NCCL's memory: a communicator has connections to neighbours, and to those that get messages") {
  CHECK(nccl_group_bytes(2, {}) == 288 * mib);
  CHECK(nccl_group_bytes(8, {}) == 576 * mib);
  CHECK(nccl_group_bytes(64, {}) == 576 * mib);
  CHECK(nccl_group_bytes(2, {.to_neighbours = true}) == (288 + 384) * mib);
  CHECK(nccl_group_bytes(8, {.to_neighbours = true}) == (576 + 2 * 384) * mib);
  CHECK(nccl_group_bytes(4, {.to_all = true}) == (576 + 3 * 384) * mib);
  CHECK(nccl_group_bytes(64, {.to_all = true, .to_neighbours = true}) == (576 + 7 * 384) * mib);
}

TEST_CASE("NCCL's memory: groups of the same ranks have one communicator") {
  // dp, dp_cp and others are all ranks.
  const PlannedGroups alike(make_grid({.dp_shard = 4}));
  CHECK(nccl_bytes(alike, 4, 1, {}) == nccl_group_bytes(4, {}));
  CHECK(nccl_bytes(alike, 4, 1, {{{Group::dp_shard, Operation::all_to_all}, {1, 1}}}) ==
        nccl_group_bytes(4, {.to_all = true}));
  // The world, pp, its ends, and dp with those that are the same.
  const std::set<Group> names{Group::dp, Group::dp_cp, Group::pp, Group::embd};
  const PlannedGroups stages(make_grid({.dp_shard = 2, .pp = 3}), names);
  const RankTraffic::Sums traffic{{{Group::pp, Operation::exchange}, {1, 1}}};
  const std::int64_t inner =
      nccl_group_bytes(6, {}) + nccl_group_bytes(2, {}) + nccl_group_bytes(3, {.to_neighbours = true});
  CHECK(nccl_bytes(stages, 6, 0, traffic) == inner + nccl_group_bytes(2, {}));
  CHECK(nccl_bytes(stages, 6, 2, traffic) == inner);
  CHECK(nccl_bytes(stages, 6, 5, traffic) == inner + nccl_group_bytes(2, {}));
}

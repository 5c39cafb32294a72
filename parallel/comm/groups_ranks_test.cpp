#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/comm/process_groups.h"
#include "parallel/comm/together.h"
#include "parallel/grid/grid_sizes.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::vector<int> members(const ProcessGroups& groups, Group group) {
  const auto m = groups[group].members();
  return {m.begin(), m.end()};
}

}  // namespace

TEST_CASE("process groups: each holds the ranks that the grid says, and they talk to each other") {
  World& world = test_world();
  const std::int64_t size = world.size(), tp = size % 2 == 0 ? 2 : 1, pp = size % 4 == 0 ? 2 : 1;
  HypercubeGrid grid({{"tp", tp}, {"cp", 1}, {"dp", size / tp / pp}, {"pp", pp}}, 0, size);
  grid.add_view("expert", {{"expt_tp", 1}, {"ep", size / pp}, {"expt_dp", 1}, {"pp", pp}}, {"pp"});
  const ProcessGroups groups(world, grid);
  const auto check = [&](Group of, const std::vector<std::string>& dims, const std::string& view) {
    CAPTURE(name_of(of));
    const RankGroups ranks = grid.groups(dims, view);
    Communicator& group = groups[of];
    CHECK(group.name() == name_of(of));
    CHECK(find_group(group.name()) == of);
    CHECK(members(groups, of) == ranks.ranks(ranks.group_of(world.rank())));
    CHECK(group.rank() == ranks.position_of(world.rank()));
    const Tensor sum = Tensor::from<std::int32_t>({world.rank() + 1}, {1});
    group.all_reduce(sum);
    std::int32_t want = 0;
    for (const int r : group.members()) want += r + 1;
    CHECK(sum.item<std::int32_t>() == want);
  };
  check(Group::tp, {"tp"}, "base");
  check(Group::cp, {"cp"}, "base");
  check(Group::pp, {"pp"}, "base");
  check(Group::dp, {"dp"}, "base");
  check(Group::dp_cp, {"dp", "cp"}, "base");
  check(Group::mp, {"tp", "pp"}, "base");
  check(Group::tp_dp_cp, {"tp", "cp", "dp"}, "base");
  check(Group::optimizer, {"tp", "cp", "dp", "pp"}, "base");
  check(Group::ep, {"ep"}, "expert");
  check(Group::tp_ep_pp, {"ep", "pp"}, "expert");
  CHECK(groups[Group::expt_dp].size() == 1);
  CHECK(groups[Group::dp_replicate].size() == 1);
  CHECK(members(groups, Group::dp_shard) == members(groups, Group::dp));
  CHECK(message_of([&] { groups[Group::world]; }).find("'world' (its groups: dp, dp_cp, tp, cp,") !=
        std::string::npos);
}

TEST_CASE("process groups: replicas, tied embeddings, and ranks outside the grid") {
  World& world = test_world();
  const int size = world.size();
  if (size < 4) return;
  const ProcessGroups hybrid(world, HypercubeGrid({{"dp_shard", 2}, {"dp_replicate", size / 2}}, 0, size));
  const bool in_hybrid = world.rank() < size / 2 * 2;
  if (in_hybrid) {
    const int shard = world.rank() / 2 * 2;
    CHECK(members(hybrid, Group::dp_shard) == std::vector{shard, shard + 1});
    CHECK(hybrid[Group::dp].size() == size / 2 * 2);
    CHECK(hybrid[Group::dp_replicate].members()[0] == world.rank() % 2);
    CHECK(members(hybrid, Group::optimizer) == members(hybrid, Group::dp_shard));
  }
  const ProcessGroups stages(world, HypercubeGrid({{"pp", 3}}, 1, size));
  if (world.rank() == 0 || world.rank() > 3)
    CHECK(message_of([&] { stages[Group::pp]; }).find("(its groups: none)") != std::string::npos);
  else if (world.rank() == 2)
    CHECK(message_of([&] { stages[Group::embd]; }).find("'embd'") != std::string::npos);
  else
    CHECK(members(stages, Group::embd) == std::vector{1, 3});
}

TEST_CASE("process groups: each of two grids side by side sums over its own ranks, and the world over all") {
  World& world = test_world();
  const int size = world.size();
  if (size < 4) return;
  const GridSizes front{.tp = 2}, back{.dp_shard = 2, .first_rank = 2};
  const HypercubeGrid front_grid = make_grid(front), back_grid = make_grid(back);
  const ProcessGroups of_front(world, front_grid), of_back(world, back_grid);
  CHECK(of_front.made() == 1);  // the grid itself, which is tp, mp and more
  CHECK(of_back.made() == 1);
  const auto check = [&](const ProcessGroups& groups, const HypercubeGrid& grid, Group cut) {
    CAPTURE(name_of(cut));
    if (!grid.contains(world.rank())) {
      CHECK(message_of([&] { (void)groups.all(); }) ==
            "this rank is outside of the grid of these process groups");
      CHECK(groups.present().empty());
      return;
    }
    const int first = grid.offset();
    CHECK(groups.all().name() == "grid");
    CHECK(&groups[Group::grid] == &groups.all());
    CHECK(groups.all().rank() == world.rank() - first);
    for (const Group group : {Group::grid, cut, Group::tp_dp_cp, Group::optimizer}) {
      CAPTURE(name_of(group));
      CHECK(members(groups, group) == std::vector{first, first + 1});
      CHECK(groups[group].host_all_reduce(1 + world.rank()) == 2 * first + 3);
    }
    CHECK(groups[Group::pp].size() == 1);
  };
  check(of_front, front_grid, Group::tp);
  check(of_back, back_grid, Group::dp);
  CHECK(world.communicator().host_all_reduce(1 + world.rank()) == size * (size + 1) / 2);

  // One rank is a grid, too, of which nothing has to be made. A grid of the whole world is the world.
  const ProcessGroups one(world, make_grid({.first_rank = size - 1})),
      whole(world, make_grid({.dp_shard = size}));
  CHECK(one.made() == 0);
  if (world.rank() == size - 1) CHECK(one.all().host_all_reduce(7) == 7);
  CHECK(&whole.all() == &world.communicator());
  CHECK(std::ranges::count(whole.present(), Group::grid) == 0);
  const std::string beyond = cat("a grid of ranks ", size - 1, " to ", size, " in a world of ", size);
  CHECK_THROWS_WITH_AS(ProcessGroups(world, make_grid({.tp = 2, .first_rank = size - 1})),
                       doctest::Contains(beyond.c_str()), std::logic_error);
}

TEST_CASE("process groups: only those named are made, and equal sets of ranks once") {
  World& world = test_world();
  const std::int64_t size = world.size(), tp = size % 2 == 0 ? 2 : 1, dp = size / tp;
  const HypercubeGrid grid({{"tp", tp}, {"cp", 1}, {"dp_shard", dp}}, 0, size);
  const ProcessGroups groups(world, grid,
                             {Group::dp, Group::tp, Group::dp_shard_cp, Group::tp_dp_cp, Group::cp});
  CHECK(groups.present() ==
        std::vector{Group::dp, Group::tp, Group::cp, Group::dp_shard_cp, Group::tp_dp_cp});
  CHECK(message_of([&] { groups[Group::mp]; }).find("'mp' (its groups: dp, tp, cp, dp_shard_cp, tp_dp_cp)") !=
        std::string::npos);
  CHECK(groups.made() == (dp > 1 && dp < size) + (tp > 1 && tp < size));  // tp_dp_cp is the world
  CHECK(members(groups, Group::dp_shard_cp) == members(groups, Group::dp));
  // The names differ in their statistics, and their operations may alternate.
  Communicator &dp_group = groups[Group::dp], &same = groups[Group::dp_shard_cp];
  const std::int64_t before = same.stats(Operation::all_reduce).calls;
  for (int i = 0; i < 3; ++i) {
    CHECK(dp_group.host_all_reduce(1) == dp);
    CHECK(same.host_all_reduce(std::int64_t{2}) == 2 * dp);
    CHECK(groups[Group::tp_dp_cp].host_all_reduce(1) == size);
  }
  CHECK(same.name() == "dp_shard_cp");
  CHECK(same.stats(Operation::all_reduce).calls == before + 3);
}

TEST_CASE("background group: its operations run beside those of the main thread, and never hold these up") {
  World& world = test_world();
  const auto group = world.background_group("beside", 1 << 20);
  CHECK((group == nullptr) == (world.size() == 1));
  if (!group) return;
  CHECK(group->rank() == world.rank());
  CHECK(group->size() == world.size());
  std::atomic<int> main_calls{0};
  int before_late_rank = 0;
  const auto sums_of = [&](Communicator& ranks, std::int64_t call) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(1 + call * 997 % 5000), ranks.rank() + call);
    ranks.host_all_reduce(std::span(values), Reduction::sum);
    const std::int64_t n = ranks.size(), want = n * (n - 1) / 2 + n * call;
    return std::ranges::all_of(values, [want](std::int64_t v) { return v == want; });
  };
  bool right = true;
  std::thread other([&] {
    // The last rank comes when the main threads of all have made their first hundred calls.
    if (world.rank() == world.size() - 1)
      while (main_calls < 100) std::this_thread::yield();
    group->host_barrier();
    before_late_rank = main_calls;
    for (int call = 0; call < 100; ++call) right &= sums_of(*group, call);
    const auto texts = gather_texts(&*group, std::string(100000, static_cast<char>('a' + world.rank())));
    for (std::size_t r = 0; r < texts.size(); ++r)
      right &= texts[r] == std::string(100000, static_cast<char>('a' + r));
  });
  for (int call = 0; call < 200; ++call, ++main_calls) CHECK(sums_of(world.communicator(), call));
  other.join();
  CHECK(right);
  CHECK(before_late_rank >= 99);  // a rank may be one call behind the others
}

TEST_CASE("background group: its operations go on while main threads wait in a collective for a rank") {
  World& world = test_world();
  const auto group = world.background_group("beside", 0);
  if (!group) return;
  const CommOptions usual;
  CommOptions limited;
  limited.timeout_seconds = 20;
  world.communicator().host_barrier();
  world.set_options(limited);
  std::thread other([&] {
    for (int call = 0; call < 50; ++call) group->host_barrier();
  });
  // Rank 0 comes to the collective when its other thread has ended, which needs those of all ranks.
  if (world.rank() == 0) other.join();
  world.communicator().host_barrier();
  if (other.joinable()) other.join();
  world.set_options(usual);
  world.communicator().host_barrier();
}

TEST_CASE("background group: a failure of a rank is one of all, and waits have the limit of the storage") {
  World& world = test_world();
  const auto group = world.background_group("beside", 5'000'000);  // half a second
  if (!group) return;
  std::string text;
  std::thread other([&] {
    text = message_of([&] { together(&*group, [&] { require(world.rank() != 1, "no space"); }); });
  });
  other.join();
  CHECK(text == (world.rank() == 1 ? "no space" : "rank 1: no space"));
  const CommOptions usual;
  CommOptions hasty;
  hasty.timeout_seconds = 0.2;
  world.communicator().host_barrier();
  world.set_options(hasty);
  if (world.rank() == 0) {
    std::thread([&] { text = message_of([&] { group->host_barrier(); }); }).join();
    CHECK(text.find("in barrier number") != std::string::npos);
    CHECK(text.find("of group beside; rank") != std::string::npos);
    CHECK(text.find("the limit is 0.2 s and 0.5 s for 5.0 MB at 10.0 MB/s") != std::string::npos);
  }
  world.set_options(usual);
  world.communicator().host_barrier();
}

TEST_CASE("world: the local rank comes from the node") {
  const World& world = test_world();
  const char* nodes = std::getenv("NEMOCUBE_TEST_NODES");  // ranks of each node: "1,3"
  if (!nodes) {
    CHECK(world.local_rank() == world.rank());
    CHECK(world.nodes() == 1);
    return;
  }
  CHECK(std::string_view(nodes) == "1,3");
  REQUIRE(world.size() == 4);
  CHECK(world.nodes() == 2);
  CHECK(world.node() == (world.rank() == 0 ? 0 : 1));
  CHECK(world.local_rank() == (world.rank() == 0 ? 0 : world.rank() - 1));
}

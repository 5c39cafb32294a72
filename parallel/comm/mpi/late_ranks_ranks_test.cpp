#include "parallel/comm/mpi/late_ranks.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE(
    "late ranks: told apart are those that come, those that are elsewhere, and those that do not answer" *
    on_ranks({4})) {
  World& world = test_world();
  if (world.size() < 4) return;
  const auto late = world.late_ranks();
  const int rank = world.rank(), last = world.size() - 1;
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 2; ++i) CHECK(late->come("dp") == i + 1);
  CHECK(late->come("tp") == 1);
  if (rank != 1) CHECK(late->come("dp") == 3);
  world.communicator().host_barrier();
  std::atomic<bool> ends = false;
  std::thread answering([&] {
    while (!ends && rank != last) {
      late->answer();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  if (rank == 0 || rank == 2) {  // at the same time
    const std::vector<int> pair{0, 1, 2};
    CHECK(late->ask(pair, "dp", 2, 20) == "all ranks of the group have come");
    CHECK(late->ask(pair, "dp", 3, 20) == "rank 1 has not come");
    CHECK(late->ask(pair, "tp", 2, 20) ==
          (rank == 0 ? "ranks 1, 2 have not come" : "ranks 0, 1 have not come"));
    CHECK(late->ask(pair, "no such group", 0, 20) == "all ranks of the group answer");
    const std::string silent =
        cat("rank ", last, " has not come and does not answer: the process has stopped, or its machine");
    CHECK(late->ask(std::vector<int>{0, 2, last}, "dp", 3, 0.5) == silent);
    CHECK(late->ask(all, "dp", 3, 0.5) == silent + "; rank 1 has not come");
  }
  world.communicator().host_barrier();
  ends = true;
  answering.join();
}

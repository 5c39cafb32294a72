#include "checks/shared_clocks.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace emulator;

TEST_CASE("a block barrier orders all threads, arrival alone only one way") {
  SharedClocks clocks(96);
  const ThreadTime first = clocks.now(0), second = clocks.now(1), third = clocks.now(2);
  CHECK(clocks.before(5, first, 5));
  CHECK_FALSE(clocks.before(5, first, 6));
  CHECK_FALSE(clocks.before(5, first, 40));
  // Warp 0 only arrives, warp 1 waits, warp 2 stays away.
  clocks.arrive(1, 0);
  clocks.arrive(1, 1);
  const ThreadTime later = clocks.now(0);
  clocks.complete(1, 0b010, false);
  CHECK(clocks.before(5, first, 40));
  CHECK_FALSE(clocks.before(5, later, 40));
  CHECK_FALSE(clocks.before(40, second, 5));
  CHECK_FALSE(clocks.before(70, third, 40));
  CHECK_FALSE(clocks.before(5, first, 70));
}

TEST_CASE("knowledge travels along chains of barriers, releases and warp syncs") {
  SharedClocks clocks(128);
  const ThreadTime of_first = clocks.now(0);
  clocks.release(7, 3, clocks.now(0));
  clocks.acquire(7, 33);
  CHECK(clocks.before(3, of_first, 33));
  CHECK_FALSE(clocks.before(4, of_first, 33));  // another lane of the releasing warp
  CHECK_FALSE(clocks.before(3, of_first, 34));  // another lane of the acquiring warp
  clocks.warp_sync(1, 0x6);                     // lanes 33 and 34
  CHECK(clocks.before(3, of_first, 34));
  CHECK_FALSE(clocks.before(3, of_first, 35));
  clocks.arrive(2, 1);
  clocks.arrive(2, 2);
  clocks.complete(2, 0b100, false);
  CHECK(clocks.before(3, of_first, 64));
  CHECK_FALSE(clocks.before(4, of_first, 64));
  CHECK_FALSE(clocks.before(3, of_first, 96));
}

TEST_CASE("what a warp did before it ended is known behind the next barrier of all threads") {
  SharedClocks clocks(64);
  const ThreadTime time = clocks.now(0);
  clocks.exited(0, 0x0000'ffff);
  clocks.exited(0, 0xffff'0000);
  clocks.arrive(1, 1);
  clocks.complete(1, 0b10, false);
  CHECK_FALSE(clocks.before(3, time, 40));
  clocks.arrive(0, 1);
  clocks.complete(0, 0b10, true);
  CHECK(clocks.before(3, time, 40));
}

TEST_CASE("clocks agree with full vector clocks under random synchronisation") {
  // Reference: a vector of times for every thread, times counted for each thread.
  constexpr std::uint32_t threads = 80, warps = 3;
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    SharedClocks clocks(threads);
    std::vector<std::vector<int>> reference(threads, std::vector<int>(threads, 0));
    std::vector<std::vector<int>> objects(4, std::vector<int>(threads, 0));
    std::vector<int> own(threads, 0);  // number of the thread's last access
    struct Access {
      std::uint32_t thread;
      ThreadTime time;
      int number;
    };
    std::vector<Access> accesses;
    const auto join = [](std::vector<int>& into, const std::vector<int>& from) {
      for (std::size_t k = 0; k < into.size(); ++k) into[k] = std::max(into[k], from[k]);
    };
    const auto access = [&](std::uint32_t t) {
      reference[t][t] = ++own[t];
      accesses.push_back({t, clocks.now(t / 32), own[t]});
    };
    const auto lanes_of = [&](std::uint32_t w) { return w == 2 ? 0xffffu : ~0u; };
    for (int step = 0; step < 120; ++step) {
      for (int k = 0; k < 8; ++k) access(random() % threads);
      switch (random() % 4) {
        case 0: {
          const std::uint32_t w = random() % warps;
          const LaneMask lanes = (random() % 2 ? ~0u : random() & random()) & lanes_of(w);
          std::vector<int> joined(threads, 0);
          for_lanes(lanes, [&](int l) { join(joined, reference[w * 32 + static_cast<std::uint32_t>(l)]); });
          for_lanes(lanes, [&](int l) { reference[w * 32 + static_cast<std::uint32_t>(l)] = joined; });
          clocks.warp_sync(w, lanes);
          break;
        }
        case 1: {
          const std::uint32_t arrived = 1 + random() % 7, waiting = arrived & random();
          std::vector<int> joined(threads, 0);
          for (std::uint32_t t = 0; t < threads; ++t)
            if (arrived >> t / 32 & 1) join(joined, reference[t]);
          for (std::uint32_t w = 0; w < warps; ++w)
            if (arrived >> w & 1) clocks.arrive(3, w);
          clocks.complete(3, waiting, false);
          for (std::uint32_t t = 0; t < threads; ++t)
            if (waiting >> t / 32 & 1) join(reference[t], joined);
          break;
        }
        case 2: {
          const std::uint32_t t = random() % threads, object = random() % 4;
          join(objects[object], reference[t]);
          clocks.release(object, t, clocks.now(t / 32));
          break;
        }
        default: {
          const std::uint32_t t = random() % threads, object = random() % 4;
          join(reference[t], objects[object]);
          clocks.acquire(object, t);
        }
      }
      for (int k = 0; k < 40; ++k) {
        const Access& a =
            accesses[accesses.size() - 1 - random() % std::min<std::size_t>(accesses.size(), 200)];
        const std::uint32_t me = random() % threads;
        CHECK(clocks.before(a.thread, a.time, me) == (a.number <= reference[me][a.thread]));
      }
    }
  }
}

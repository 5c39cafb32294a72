#include "parallel/comm/rank_clock.h"

#include <doctest/doctest.h>

#include <cstdlib>

using namespace nemocube;

TEST_CASE("rank clock: the offset goes evenly from one reading to the other") {
  const RankClock drifting({.time = 1000, .offset = 50, .uncertainty = 3},
                           {.time = 2000, .offset = 70, .uncertainty = 9});
  CHECK(drifting.on_rank_0(1000) == 1050);
  CHECK(drifting.on_rank_0(1500) == 1560);
  CHECK(drifting.on_rank_0(2000) == 2070);
  CHECK(drifting.on_rank_0(3000) == 3090);
  CHECK(drifting.uncertainty() == 9);
  const std::int64_t days = 40LL * 24 * 3600 * 1'000'000'000;
  const RankClock far({.time = days, .offset = -days}, {.time = days + 10, .offset = -days});
  CHECK(far.on_rank_0(days + 7) == 7);
  const RankClock once({.time = 5, .offset = 2}, {.time = 5, .offset = 4});
  CHECK(once.on_rank_0(6) == 8);
}

TEST_CASE("rank clock: a good reading narrows a bad one, unless they contradict each other") {
  // 100 ms later the clocks have drifted by 10000 ns at most: the offset is one of -15000 to 15000, and of
  // -14000 on.
  const ClockReading good{.time = 0, .offset = 0, .uncertainty = 5000},
      bad{.time = 100'000'000, .offset = 256'000, .uncertainty = 270'000};
  const RankClock clock(good, bad);
  CHECK(clock.on_rank_0(0) == 0);
  CHECK(clock.on_rank_0(100'000'000) == 100'000'500);
  CHECK(clock.uncertainty() == 14'500);
  const RankClock apart(good, {.time = 100'000'000, .offset = 256'000, .uncertainty = 5000});
  CHECK(apart.on_rank_0(100'000'000) == 100'256'000);
  CHECK(apart.uncertainty() == 5000);
}

TEST_CASE("rank clock: a round trip tells the offset to half of its length") {
  // Rank 0 is 1000 ahead; the way there takes 30, the answer is made in 7, the way back takes 10.
  const ClockReading reading = reading_of_round(100, 1130, 1137, 147);
  CHECK(reading.time == 123);
  CHECK(reading.offset == 1010);
  CHECK(reading.uncertainty == 21);
  CHECK(std::abs(reading.offset - 1000) <= reading.uncertainty);
  CHECK(RankClock(reading, reading).on_rank_0(147) == 1157);
}

TEST_CASE("rank clock: one rank is rank 0") {
  const auto alone = self_communicator("alone", 0);
  const ClockReading reading = read_clock_of_rank_0(*alone);
  CHECK(reading.offset == 0);
  CHECK(reading.uncertainty == 0);
  CHECK(reading.time > 0);
}

#include "checks/grid_clocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "machine/report.h"

using namespace emulator;

TEST_CASE("clocks of blocks against plain maps") {
  for (const std::uint32_t blocks : {1u, 16u, 17u, 300u, 70'000u}) {
    GridClocks clocks(blocks);
    struct Both {
      GridClocks::Clock clock = nullptr;
      std::map<std::uint32_t, KnownEpochs> plain;
    };
    std::vector<Both> all(8);
    std::mt19937 random(blocks);
    for (int step = 0; step < 3000; ++step) {
      Both& a = all[random() % all.size()];
      const std::uint32_t block = random() % 3 ? random() % blocks : random() % std::min(blocks, 20u);
      if (random() % 2) {
        const std::uint16_t epoch = static_cast<std::uint16_t>(1 + random() % 50);
        const KnownEpochs e{epoch, static_cast<std::uint16_t>(random() % 2 ? epoch : 0)};
        const GridClocks::Clock old = a.clock;
        const KnownEpochs before = clocks.known(old, block);
        a.clock = clocks.with(a.clock, block, e);
        CHECK(clocks.known(old, block) == before);
        KnownEpochs& p = a.plain[block];
        p = {std::max(p.any, e.any), std::max(p.fenced, e.fenced)};
      } else {
        const Both b = all[random() % all.size()];
        a.clock = clocks.join(a.clock, b.clock);
        CHECK(clocks.join(a.clock, b.clock) == a.clock);
        for (const auto& [other, e] : b.plain) {
          KnownEpochs& p = a.plain[other];
          p = {std::max(p.any, e.any), std::max(p.fenced, e.fenced)};
        }
      }
      const auto it = a.plain.find(block);
      REQUIRE(clocks.known(a.clock, block) == (it == a.plain.end() ? KnownEpochs{} : it->second));
      const std::uint16_t epoch = static_cast<std::uint16_t>(1 + random() % 60);
      REQUIRE(clocks.knows_other(a.clock, block, epoch) ==
              std::any_of(a.plain.begin(), a.plain.end(),
                          [&](const auto& e) { return e.first != block && e.second.any >= epoch; }));
    }
  }
}

TEST_CASE("equal clocks are one, whichever way they were made") {
  GridClocks clocks(1000);
  GridClocks::Clock up = nullptr, down = nullptr, joined = nullptr;
  for (std::uint32_t block = 0; block < 1000; ++block) {
    up = clocks.with(up, block, {2, 1});
    down = clocks.with(down, 999 - block, {2, 1});
    joined = clocks.join(joined, clocks.with(nullptr, block, {2, 1}));
  }
  CHECK(up == down);
  CHECK(up == joined);
  CHECK(clocks.with(up, 5, {3, 1}) != up);
}

TEST_CASE("clocks without memory know everything, and the limit is reported once") {
  take_report_kinds();
  GridClocks clocks(1000, 1000);
  GridClocks::Clock clock = nullptr;
  for (std::uint32_t block = 0; block < 100; ++block) clock = clocks.with(clock, block, {1, 1});
  CHECK(clocks.known(clock, 999) == KnownEpochs{0xffff, 0xffff});
  CHECK(clocks.knows_other(clock, 3, 4000));
  CHECK(clocks.known(clocks.join(nullptr, clock), 7).any == 0xffff);
  CHECK(take_report_kinds() == std::vector<std::string>{"check-limit"});
}

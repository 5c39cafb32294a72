#include "checks/word_history.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "machine/report.h"

using namespace emulator;
using P = PackedAccess;

namespace {

struct Side {
  OperationId operation = 0;
  std::uint32_t block = 0, epoch = 1;
  bool write = false, strong = false, constant = false;
  GridClocks::Clock clock = nullptr;
};

/// A word and the launch that uses it.
struct Word {
  GridClocks clocks{64};
  EarlierOperations earlier;
  std::unique_ptr<Granule> granule = std::make_unique<Granule>();
  ~Word() { delete granule->split.load(); }

  Finding access(const Side& s, unsigned mask = 15) {
    Accessor me;
    earlier.set(s.operation);
    me.packed = P::pack(s.operation, s.block, s.epoch, 15) | (s.strong ? P::strong : 0) |
                (s.constant ? P::constant : 0);
    me.write = s.write;
    me.clocks = &clocks;
    me.clock = s.clock;
    me.earlier = &earlier;
    return record(*granule, 5, mask, me);
  }
  Conflict read(std::uint32_t block, unsigned mask = 15, GridClocks::Clock clock = nullptr,
                std::uint32_t epoch = 1) {
    return access({.operation = launch, .block = block, .epoch = epoch, .clock = clock}, mask).conflict;
  }
  Conflict write(std::uint32_t block, unsigned mask = 15, GridClocks::Clock clock = nullptr,
                 std::uint32_t epoch = 1) {
    return access({.operation = launch, .block = block, .epoch = epoch, .write = true, .clock = clock}, mask)
        .conflict;
  }
  GridClocks::Clock knows(std::uint32_t block, std::uint16_t epoch, bool fenced = true) {
    return clocks.with(nullptr, block, {epoch, fenced ? epoch : std::uint16_t{0}});
  }
  OperationId launch = [] {
    Clock clock;
    return OperationOrder::instance().add(2'000'000, clock, "word history test");
  }();
};

}  // namespace

TEST_CASE("accesses of one block and reads of many blocks do not conflict") {
  Word w;
  CHECK(w.write(3) == Conflict::none);
  CHECK(w.read(3) == Conflict::none);
  CHECK(w.write(3) == Conflict::none);
  Word r;
  for (std::uint32_t block = 0; block < 20; ++block) CHECK(r.read(block) == Conflict::none);
}

TEST_CASE("accesses of two blocks conflict when one writes and nothing orders them") {
  SUBCASE("write, read") {
    Word w;
    w.write(1);
    CHECK(w.read(2) == Conflict::blocks);
  }
  SUBCASE("read, write") {
    Word w;
    w.read(1);
    CHECK(w.write(2) == Conflict::blocks);
  }
  SUBCASE("write, write") {
    Word w;
    w.write(1);
    CHECK(w.write(2) == Conflict::blocks);
  }
  SUBCASE("own read between") {
    Word w;
    w.read(1);
    w.read(2);
    CHECK(w.write(2) == Conflict::blocks);
  }
}

TEST_CASE("a clock that covers the other block orders; without a fence the handover is a warning") {
  Word w;
  w.write(1, 15, nullptr, 4);
  CHECK(w.read(2, 15, w.knows(1, 4)) == Conflict::none);
  CHECK(w.read(3, 15, w.knows(1, 4, false)) == Conflict::missing_fence);
  CHECK(w.read(4, 15, w.knows(1, 3)) == Conflict::blocks);
  CHECK(w.read(5, 15, w.knows(6, 9)) == Conflict::blocks);
}

TEST_CASE("a write after many readers") {
  const auto readers = [](Word& w) {
    for (std::uint32_t block = 0; block < 4; ++block) w.read(block, 15, nullptr, 2);
  };
  Word nobody, all, some, other;
  readers(nobody);
  CHECK(nobody.write(9) == Conflict::blocks);
  readers(all);
  GridClocks::Clock clock = nullptr;
  for (std::uint32_t block = 0; block < 4; ++block) clock = all.clocks.with(clock, block, {2, 2});
  CHECK(all.write(9, 15, clock) == Conflict::none);
  // Itself a reader, with knowledge of others, but not of their reads.
  readers(some);
  CHECK(some.write(0, 15, some.knows(1, 1)) == Conflict::blocks);
  // Own entries are no knowledge of others.
  readers(other);
  CHECK(other.write(0, 15, other.knows(0, 2)) == Conflict::blocks);
}

TEST_CASE("strong accesses do not conflict with each other, but with plain ones") {
  Word w;
  Side atomic{.operation = w.launch, .block = 1, .write = true, .strong = true};
  CHECK(w.access(atomic).conflict == Conflict::none);
  atomic.block = 2;
  CHECK(w.access(atomic).conflict == Conflict::none);
  Side load{.operation = w.launch, .block = 3, .strong = true};
  CHECK(w.access(load).conflict == Conflict::none);
  CHECK(w.read(4) == Conflict::blocks);
}

TEST_CASE("a launch that reads by ld.nc must not write, not even in the same block") {
  Word w;
  Side constant{.operation = w.launch, .block = 1, .constant = true};
  CHECK(w.access(constant).conflict == Conflict::none);
  CHECK(w.write(1) == Conflict::read_only);
  CHECK(w.access(constant).conflict == Conflict::read_only);
}

TEST_CASE("blocks that use different bytes of a word do not conflict; the bytes keep their histories") {
  Word w;
  CHECK(w.write(1, 0b0011) == Conflict::none);
  CHECK(w.write(2, 0b1100) == Conflict::none);
  CHECK(w.read(1, 0b0011) == Conflict::none);
  CHECK(w.write(1, 0b0011) == Conflict::none);
  CHECK(w.read(3, 0b0010) == Conflict::blocks);
  CHECK(w.read(2, 0b1100) == Conflict::none);
  CHECK(w.read(2, 0b1000, w.knows(1, 1)) == Conflict::none);
  CHECK(w.read(2, 0b1111) == Conflict::blocks);
  CHECK(w.write(3, 0b1111) == Conflict::blocks);
  // One writer again.
  CHECK(w.read(3, 0b0100) == Conflict::none);
  CHECK(w.read(4, 0b0100) == Conflict::blocks);
}

TEST_CASE("operations beyond the limit are not judged, which is reported once") {
  take_report_kinds();
  CHECK(fits_history(P::operation_limit - 1));
  CHECK(take_report_kinds().empty());
  CHECK_FALSE(fits_history(P::operation_limit));
  CHECK_FALSE(fits_history(P::operation_limit + 5));
  CHECK(take_report_kinds() == std::vector<std::string>{"check-limit"});
}

TEST_CASE(
    "strong writes of another block are handed over by a later fence, or by a strong read that saw them") {
  const auto written = [](Word& w) {
    w.access({.operation = w.launch, .block = 1, .epoch = 3, .write = true, .strong = true});
  };
  SUBCASE("no fence after the write") {
    Word w;
    written(w);
    CHECK(w.read(2, 15, w.knows(1, 3)) == Conflict::missing_fence);
  }
  SUBCASE("a fence after the write") {
    Word w;
    written(w);
    CHECK(w.read(2, 15, w.knows(1, 4)) == Conflict::none);
  }
  SUBCASE("no handover") {
    Word w;
    written(w);
    CHECK(w.read(2, 15, w.knows(1, 2)) == Conflict::blocks);
  }
  SUBCASE("the block has seen the value by a strong read") {
    Word w;
    written(w);
    w.access({.operation = w.launch, .block = 2, .strong = true, .clock = w.knows(1, 3)});
    CHECK(w.read(2, 15, w.knows(1, 3)) == Conflict::none);
  }
  SUBCASE("a block has seen the value, and hands over what it did") {
    Word w;
    written(w);
    w.access({.operation = w.launch, .block = 4, .epoch = 2, .strong = true, .clock = w.knows(1, 3)});
    const GridClocks::Clock of_reader = w.clocks.with(w.knows(1, 3), 4, {2, 2});
    CHECK(w.write(5, 15, of_reader) == Conflict::none);
  }
  SUBCASE("a block has seen the value, and hands over what it did without a fence") {
    Word w;
    written(w);
    w.access({.operation = w.launch, .block = 4, .epoch = 2, .strong = true, .clock = w.knows(1, 3)});
    const GridClocks::Clock of_reader = w.clocks.with(w.knows(1, 3), 4, {2, 0});
    CHECK(w.write(5, 15, of_reader) == Conflict::missing_fence);
  }
}

TEST_CASE("operations") {
  OperationOrder& order = OperationOrder::instance();
  Clock s, t, u;
  Word w;
  const OperationId first = order.add(2'000'001, s, "a");
  const OperationId unordered = order.add(2'000'002, t, "b");
  Clock after = s;
  join(after, t);
  const OperationId last = order.add(2'000'003, after, "c");
  join(u, s);
  const OperationId half = order.add(2'000'004, u, "d");
  CHECK(w.access({.operation = first, .write = true}).conflict == Conflict::none);
  CHECK(w.access({.operation = unordered}).conflict == Conflict::operations);
  CHECK(w.access({.operation = last}).conflict == Conflict::none);
  // Two readers that nothing orders: a writer must come after both.
  Word r;
  CHECK(r.access({.operation = first}).conflict == Conflict::none);
  CHECK(r.access({.operation = unordered}).conflict == Conflict::none);
  CHECK(r.access({.operation = unordered, .block = 7}).conflict == Conflict::none);
  Word copy;
  copy.access({.operation = first});
  copy.access({.operation = unordered});
  CHECK(copy.access({.operation = half, .write = true}).conflict == Conflict::operations);
  CHECK(r.access({.operation = last, .write = true}).conflict == Conflict::none);
}

TEST_CASE(
    "random accesses: every finding is a real conflict, and a conflict with the last whole write is found") {
  struct Past {
    Side side;
    unsigned mask;
  };
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const bool whole = seed % 2;
    Word w;
    std::vector<Past> past;
    struct Block {
      GridClocks::Clock clock = nullptr;
      std::uint16_t epoch = 1;
    };
    std::vector<Block> blocks(5);
    for (int step = 0; step < 60; ++step) {
      const std::uint32_t b = random() % blocks.size();
      if (random() % 3 == 0) {
        // Block b hands over to another one.
        Block& to = blocks[random() % blocks.size()];
        blocks[b].clock = w.clocks.with(blocks[b].clock, b, {blocks[b].epoch, blocks[b].epoch});
        ++blocks[b].epoch;
        to.clock = w.clocks.join(to.clock, blocks[b].clock);
        continue;
      }
      const unsigned masks[] = {15, 3, 12, 1, 8};
      const Past now{{.operation = w.launch,
                      .block = b,
                      .epoch = blocks[b].epoch,
                      .write = random() % 3 == 0,
                      .strong = random() % 4 == 0,
                      .clock = blocks[b].clock},
                     whole ? 15u : masks[random() % 5]};
      const auto conflicts = [&](const Past& old) {
        return (old.mask & now.mask) && (old.side.write || now.side.write) && old.side.block != b &&
               !(old.side.strong && now.side.strong) &&
               w.clocks.known(now.side.clock, old.side.block).any < old.side.epoch;
      };
      const Finding finding = w.access(now.side, now.mask);
      if (finding.conflict != Conflict::none) {
        // Bytes of a plain and of a strong write of one block are kept with the older epoch: the kind of conflict may be the milder one.
        CHECK((finding.conflict == Conflict::blocks ||
               (!whole && finding.conflict == Conflict::missing_fence)));
        CHECK(std::any_of(past.begin(), past.end(), conflicts));
      }
      const auto last_write =
          std::find_if(past.rbegin(), past.rend(), [](const Past& p) { return p.side.write; });
      if (whole && last_write != past.rend() && conflicts(*last_write))
        CHECK(finding.conflict == Conflict::blocks);
      past.push_back(now);
      // A strong write comes after the handover of its epoch.
      if (now.side.write && now.side.strong) ++blocks[b].epoch;
    }
  }
}

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <random>

#include "tests/lane_kernel.h"

namespace emulator::test {
namespace {

std::mt19937 generator(7);

std::uint32_t random_bits() { return static_cast<std::uint32_t>(generator()); }
LaneValues random_values(std::uint32_t below = 0) {
  LaneValues values(32);
  for (std::uint32_t& v : values) v = below ? random_bits() % below : random_bits();
  return values;
}

/// Assigns each lane to one of `count` sets; returns each lane's set as a mask.
LaneValues random_partition(std::uint32_t count) {
  const LaneValues set = random_values(count);
  LaneValues masks(32);
  for (int lane = 0; lane < 32; ++lane)
    for (int other = 0; other < 32; ++other)
      if (set[other] == set[lane]) masks[lane] |= 1u << other;
  return masks;
}

std::vector<int> lanes_of(std::uint32_t mask) {
  std::vector<int> lanes;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) lanes.push_back(lane);
  return lanes;
}

bool contains(const std::vector<std::string>& reports, const std::string& kind) {
  return std::find(reports.begin(), reports.end(), kind) != reports.end();
}

/// The result of __shfl_*_sync (CUDA C++ Programming Guide, "Warp Shuffle Functions") and whether the source lay in
/// range.
struct Shuffled {
  int source;
  bool in_range;
};
Shuffled shuffled(const std::string& mode, int lane, int b, int width) {
  b %= 32;
  const int begin = lane / width * width, end = begin + width;
  int source = 0;
  bool in_range = true;
  if (mode == "up") source = lane - b, in_range = source >= begin;
  if (mode == "down") source = lane + b, in_range = source < end;
  if (mode == "bfly") source = lane ^ b, in_range = source < end;  // lanes of earlier segments may be read
  if (mode == "idx") source = begin + b % width;
  return {in_range ? source : lane, in_range};
}

const std::string shuffle_with_mask_r2 = " %r50|%q1, %r0, %r1, %r3, %r2;\nselp.u32 %r51, 1, 0, %q1;";

TEST_CASE("shuffles: every mode and width") {
  for (const std::string mode : {"up", "down", "bfly", "idx"})
    for (int width = 1; width <= 32; width *= 2) {
      CAPTURE(mode);
      CAPTURE(width);
      const LaneValues a = random_values(), b = random_values(64);
      const LaneValues mask(32, 0xffffffff),
          c(32, static_cast<std::uint32_t>((32 - width) << 8 | (mode == "up" ? 0 : 31)));
      const LaneOutcome got =
          run_lanes("shfl.sync." + mode + ".b32" + shuffle_with_mask_r2, {a, b, mask, c}, 2);
      CHECK(got.error == 0);
      CHECK(got.reports.empty());
      for (int lane = 0; lane < 32; ++lane) {
        const Shuffled want = shuffled(mode, lane, static_cast<int>(b[lane]), width);
        CHECK(got.rows[0][lane] == a[want.source]);
        CHECK(got.rows[1][lane] == want.in_range);
      }
    }
}

TEST_CASE("shuffles: any clamp and segment mask, immediates, no predicate, result over source") {
  for (const std::string mode : {"up", "down", "bfly", "idx"}) {
    const LaneValues a = random_values(), b = random_values(), c = random_values(), mask(32, 0xffffffff);
    const LaneOutcome got =
        run_lanes("shfl.sync." + mode + ".b32" + shuffle_with_mask_r2, {a, b, mask, c}, 2);
    CHECK(got.reports.empty());
    for (int lane = 0; lane < 32; ++lane) {
      // The formulas of PTX ISA 9.7.9.6.
      const int bval = b[lane] & 0x1f, cval = c[lane] & 0x1f, segmask = c[lane] >> 8 & 0x1f;
      const int max_lane = (lane & segmask) | (cval & ~segmask), min_lane = lane & segmask;
      int j = 0;
      bool p = false;
      if (mode == "up") j = lane - bval, p = j >= max_lane;
      if (mode == "down") j = lane + bval, p = j <= max_lane;
      if (mode == "bfly") j = lane ^ bval, p = j <= max_lane;
      if (mode == "idx") j = min_lane | (bval & ~segmask), p = j <= max_lane;
      CHECK(got.rows[0][lane] == a[p ? j : lane]);
      CHECK(got.rows[1][lane] == p);
    }
  }
  const LaneValues a = random_values();
  const LaneOutcome got = run_lanes(
      "mov.u32 %r50, %r0;\nshfl.sync.down.b32 %r50, %r50, 3, 31, -1;\nshfl.sync.idx.b32 _|%q1, %r0, 5, 31, "
      "-1;\n"
      "selp.u32 %r51, 1, 0, %q1;",
      {a}, 2);
  CHECK(got.error == 0);
  for (int lane = 0; lane < 32; ++lane) {
    CHECK(got.rows[0][lane] == a[lane + 3 < 32 ? lane + 3 : lane]);
    CHECK(got.rows[1][lane] == 1);
  }
}

TEST_CASE("shuffles within several masks at once") {
  for (int round = 0; round < 8; ++round) {
    const LaneValues a = random_values(), mask = random_partition(1 + random_bits() % 5), c(32, 31);
    LaneValues b(32);
    for (int lane = 0; lane < 32; ++lane) {
      const std::vector<int> mine = lanes_of(mask[lane]);
      b[lane] = static_cast<std::uint32_t>(mine[random_bits() % mine.size()]);
    }
    const LaneOutcome got = run_lanes("shfl.sync.idx.b32" + shuffle_with_mask_r2, {a, b, mask, c}, 2);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
    for (int lane = 0; lane < 32; ++lane) CHECK(got.rows[0][lane] == a[b[lane]]);
  }
}

TEST_CASE("lanes of different places meet in one shuffle") {
  for (int round = 0; round < 4; ++round) {
    const LaneValues a = random_values(), b = random_values(32), side = random_values(2);
    const LaneOutcome got = run_lanes(R"(
      setp.eq.u32 %q0, %r2, 0;
      @%q0 bra ELSE;
      shfl.sync.idx.b32 %r50, %r0, %r1, 31, -1;
      add.u32 %r50, %r50, 1;
      bra JOIN;
    ELSE:
      add.u32 %r0, %r0, 7;
      shfl.sync.idx.b32 %r50|%q1, %r0, %r1, 31, -1;
    JOIN:)",
                                      {a, b, side}, 1);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
    for (int lane = 0; lane < 32; ++lane) {
      const std::uint32_t source = b[lane], sent = a[source] + (side[source] == 0 ? 7 : 0);
      CHECK(got.rows[0][lane] == sent + (side[lane] != 0));
    }
  }
}

const std::string exit_where_r9_is_0 = "setp.eq.u32 %q9, %r9, 0;\n@%q9 exit;\n";

/// Inputs r0 to r8 (missing ones zero), then who stays (r9).
std::vector<LaneValues> with_living(std::vector<LaneValues> inputs, std::uint32_t alive) {
  inputs.resize(9, LaneValues(32));
  LaneValues stays(32);
  for (int lane = 0; lane < 32; ++lane) stays[lane] = alive >> lane & 1;
  inputs.push_back(stays);
  return inputs;
}

TEST_CASE("votes, matches, reductions and elections among living lanes of several masks") {
  for (int round = 0; round < 24; ++round) {
    const LaneValues mask = random_partition(1 + random_bits() % 3);
    const std::uint32_t alive = round % 3 == 0 ? 0xffffffff : random_bits() | 1;
    // Mostly equal votes, so that all, uni and match.all hold for some sets.
    LaneValues vote = random_values(round % 2 ? 2 : 1), key = random_values(3);
    if (round % 4 == 2) std::fill(key.begin(), key.end(), 5);
    if (round % 8 == 4) std::fill(vote.begin(), vote.end(), 1);
    const LaneValues value = random_values();
    const LaneOutcome got = run_lanes(exit_where_r9_is_0 + R"(
      setp.ne.u32 %q0, %r1, 0;
      vote.sync.all.pred %q1, %q0, %r0;
      selp.u32 %r50, 1, 0, %q1;
      vote.sync.any.pred %q1, %q0, %r0;
      selp.u32 %r51, 1, 0, %q1;
      vote.sync.uni.pred %q1, !%q0, %r0;
      selp.u32 %r52, 1, 0, %q1;
      vote.sync.ballot.b32 %r53, %q0, %r0;
      vote.ballot.sync.b32 %r54, !%q0, %r0;
      match.any.sync.b32 %r55, %r2, %r0;
      mov.b64 %rd0, {%r3, %r2};
      match.any.sync.b64 %r56, %rd0, %r0;
      match.all.sync.b32 %r57|%q1, %r2, %r0;
      selp.u32 %r58, 1, 0, %q1;
      mov.b64 %rd0, {%r2, %r2};
      match.all.sync.b64 %r59, %rd0, %r0;
      redux.sync.add.u32 %r60, %r4, %r0;
      redux.sync.add.s32 %r61, %r4, %r0;
      redux.sync.min.u32 %r62, %r4, %r0;
      redux.sync.max.u32 %r63, %r4, %r0;
      redux.sync.min.s32 %r64, %r4, %r0;
      redux.sync.max.s32 %r65, %r4, %r0;
      redux.sync.and.b32 %r66, %r4, %r0;
      redux.sync.or.b32 %r67, %r4, %r0;
      redux.sync.xor.b32 %r68, %r4, %r0;
      elect.sync %r69|%q1, %r0;
      selp.u32 %r70, 1, 0, %q1;
      bar.warp.sync %r0;
      activemask.b32 %r71;)",
                                      with_living({mask, vote, key, random_values(1), value}, alive), 22);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
    for (int lane = 0; lane < 32; ++lane) {
      if (!(alive >> lane & 1)) {
        for (const LaneValues& row : got.rows) CHECK(row[lane] == untouched);
        continue;
      }
      const std::vector<int> group = lanes_of(mask[lane] & alive);
      std::uint32_t yes = 0, equal = 0, sum = 0, conjunction = ~0u, disjunction = 0, parity = 0;
      std::uint32_t low = ~0u, high = 0;
      std::int32_t low_signed = INT32_MAX, high_signed = INT32_MIN;
      for (const int other : group) {
        yes |= (vote[other] != 0 ? 1u : 0u) << other;
        equal |= (key[other] == key[lane] ? 1u : 0u) << other;
        sum += value[other];
        conjunction &= value[other];
        disjunction |= value[other];
        parity ^= value[other];
        low = std::min(low, value[other]);
        high = std::max(high, value[other]);
        low_signed = std::min(low_signed, static_cast<std::int32_t>(value[other]));
        high_signed = std::max(high_signed, static_cast<std::int32_t>(value[other]));
      }
      const std::uint32_t members = mask[lane] & alive;
      const bool all_equal = equal == members;
      const LaneValues want{yes == members,
                            yes != 0,
                            yes == members || yes == 0,
                            yes,
                            members & ~yes,
                            equal,
                            equal,
                            all_equal ? members : 0,
                            all_equal,
                            all_equal ? members : 0,
                            sum,
                            sum,
                            low,
                            high,
                            static_cast<std::uint32_t>(low_signed),
                            static_cast<std::uint32_t>(high_signed),
                            conjunction,
                            disjunction,
                            parity,
                            static_cast<std::uint32_t>(group.front()),
                            group.front() == lane};
      for (std::size_t k = 0; k < want.size(); ++k) {
        CAPTURE(k);
        CHECK(got.rows[k][lane] == want[k]);
      }
      // Any set of living lanes that holds the lane itself is a legal answer.
      CHECK((got.rows[21][lane] & ~alive) == 0);
      CHECK((got.rows[21][lane] >> lane & 1) == 1);
    }
  }
}

TEST_CASE("match.any.b64 sees both halves") {
  const LaneValues low = random_values(2), high = random_values(2);
  const LaneOutcome got =
      run_lanes("mov.b64 %rd0, {%r0, %r1};\nmatch.any.sync.b64 %r50, %rd0, -1;", {low, high}, 1);
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t want = 0;
    for (int other = 0; other < 32; ++other)
      if (low[other] == low[lane] && high[other] == high[lane]) want |= 1u << other;
    CHECK(got.rows[0][lane] == want);
  }
}

TEST_CASE("a vote meets its negated form") {
  const LaneValues side = random_values(2), vote = random_values(2);
  const LaneOutcome got = run_lanes(R"(
      setp.ne.u32 %q0, %r0, 0;
      setp.ne.u32 %q1, %r1, 0;
      @%q0 vote.sync.ballot.b32 %r50, %q1, -1;
      @!%q0 vote.sync.ballot.b32 %r50, !%q1, -1;)",
                                    {side, vote}, 1);
  CHECK(got.error == 0);
  std::uint32_t want = 0;
  for (int lane = 0; lane < 32; ++lane) want |= (side[lane] ? vote[lane] : 1 - vote[lane]) << lane;
  for (int lane = 0; lane < 32; ++lane) CHECK(got.rows[0][lane] == want);
}

TEST_CASE("shuffle from a lane that has exited is reported, from a living one not") {
  const LaneValues a = random_values();
  const std::string body = exit_where_r9_is_0 + "shfl.sync.idx.b32 %r50, %r0, %r1, 31, -1;";
  const LaneOutcome bad = run_lanes(body, with_living({a, LaneValues(32, 20)}, 0xffff), 1);
  CHECK(contains(bad.reports, "shuffle-source"));
  const LaneOutcome good = run_lanes(body, with_living({a, LaneValues(32, 12)}, 0xffff), 1);
  CHECK(good.reports.empty());
  for (int lane = 0; lane < 16; ++lane) CHECK(good.rows[0][lane] == a[12]);
}

TEST_CASE("shuffle from a lane outside of the mask is reported, within it not") {
  // Even and odd lanes have masks of their own; a distance of 1 leaves the mask, a distance of 2 stays in it.
  LaneValues mask(32);
  for (int lane = 0; lane < 32; ++lane) mask[lane] = lane % 2 ? 0xaaaaaaaa : 0x55555555;
  const std::string body = "shfl.sync.bfly.b32 %r50, %r0, %r1, 31, %r2;";
  CHECK(contains(run_lanes(body, {random_values(), LaneValues(32, 1), mask}, 1).reports, "shuffle-source"));
  CHECK(run_lanes(body, {random_values(), LaneValues(32, 2), mask}, 1).reports.empty());
}

TEST_CASE("a lane outside of its own mask is reported") {
  const LaneOutcome bad = run_lanes("vote.sync.ballot.b32 %r50, 1, 0x7fffffff;", {}, 1);
  CHECK(bad.error == 719);
  CHECK(contains(bad.reports, "member-mask"));
  const LaneOutcome good = run_lanes(
      "setp.eq.u32 %q0, %t, 31;\nmov.u32 %r50, 0;\n@!%q0 vote.sync.ballot.b32 %r50, 1, 0x7fffffff;", {}, 1);
  CHECK(good.error == 0);
  CHECK(good.reports.empty());
  CHECK(good.rows[0][3] == 0x7fffffff);
}

TEST_CASE("lanes of the mask that never come are reported") {
  const std::string body =
      "setp.lt.u32 %q0, %t, 8;\nmov.u32 %r50, 0;\n@%q0 shfl.sync.idx.b32 %r50, %t, 3, 31, ";
  const LaneOutcome bad = run_lanes(body + "0xffff;\nbar.warp.sync 0xffff;", {}, 1, 8);
  CHECK(bad.error == 0);  // lanes 8 to 15 do not exist in a block of 8 threads
  const LaneOutcome worse = run_lanes(body + "0xffff;\n@!%q0 bar.warp.sync -1;", {}, 1, 32);
  CHECK(worse.error == 719);
  CHECK(contains(worse.reports, "divergent-warp-operation"));
  const LaneOutcome good = run_lanes(body + "0xff;\nbar.warp.sync -1;", {}, 1, 32);
  CHECK(good.error == 0);
  CHECK(good.reports.empty());
}

}  // namespace
}  // namespace emulator::test

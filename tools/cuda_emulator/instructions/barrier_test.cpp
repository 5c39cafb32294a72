#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "tests/lane_kernel.h"

namespace emulator::test {
namespace {

using Kinds = std::vector<std::string>;
std::mt19937 generator(9);

const std::string warp_in_r40 = "shr.u32 %r40, %t, 5;\n";

TEST_CASE("bar.sync: what threads wrote before is there after") {
  // Each thread reads the value of the thread `shift` places on, many rounds in a row, with two buffers.
  const std::string body = R"(
    mov.u32 %r41, buffer;
    shl.b32 %r42, %t, 2;
    mov.u32 %r50, %t;
    mov.u32 %r44, 0;
  ROUND:
    and.b32 %r45, %r44, 1;
    mad.lo.u32 %r46, %r45, 1024, %r41;
    add.u32 %r47, %r46, %r42;
    st.shared.u32 [%r47], %r50;
    bar.sync 0;
    add.u32 %r48, %r42, 140;
    rem.u32 %r48, %r48, %r1;
    add.u32 %r48, %r48, %r46;
    ld.shared.u32 %r50, [%r48];
    add.u32 %r44, %r44, 1;
    setp.lt.u32 %q0, %r44, 20;
    @%q0 bra ROUND;)";
  for (const std::uint32_t threads : {32u, 96u, 200u})
    for (std::uint64_t seed = 1; seed < 6; ++seed) {
      const LaneOutcome got = run_lanes(body, {LaneValues(threads), LaneValues(threads, threads * 4)}, 1,
                                        threads, ".shared .align 4 .b8 buffer[2048];", seed);
      CHECK(got.error == 0);
      CHECK(got.reports.empty());
      for (std::uint32_t t = 0; t < threads; ++t) CHECK(got.rows[0][t] == (t + 20 * 35) % threads);
    }
}

TEST_CASE("bar.arrive and bar.sync with counts: a producer and a consumer") {
  // Warp 0 hands the numbers 1 to 10 to warp 1, one at a time: barrier 1 says full, barrier 2 says empty.
  const std::string body = warp_in_r40 + R"(
    mov.u32 %r41, slot;
    mov.u32 %r44, 0;
    mov.u32 %r50, 0;
    setp.eq.u32 %q0, %r40, 0;
    @!%q0 bra CONSUMER;
  PRODUCER:
    bar.sync 2, 64;
    add.u32 %r44, %r44, 1;
    st.shared.u32 [%r41], %r44;
    bar.arrive 1, 64;
    setp.lt.u32 %q1, %r44, 10;
    @%q1 bra PRODUCER;
    bra END;
  CONSUMER:
    barrier.cta.arrive.aligned 2, 64;
    barrier.sync.aligned 1, 64;
    ld.shared.u32 %r45, [%r41];
    mad.lo.u32 %r50, %r50, 3, %r45;
    add.u32 %r44, %r44, 1;
    setp.lt.u32 %q1, %r44, 10;
    @%q1 bra CONSUMER;
  END:)";
  // Only lane 0 of the producer writes.
  std::string single = body;
  single.replace(single.find("st.shared"), 0, "setp.eq.u32 %q2, %t, 0;\n@%q2 ");
  std::uint32_t want = 0;
  for (std::uint32_t number = 1; number <= 10; ++number) want = 3 * want + number;
  for (std::uint64_t seed = 1; seed < 9; ++seed) {
    const LaneOutcome got = run_lanes(single, {}, 1, 64, ".shared .align 4 .b8 slot[4];", seed);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
    for (std::uint32_t t = 0; t < 64; ++t) CHECK(got.rows[0][t] == (t < 32 ? 0 : want));
  }
}

TEST_CASE("bar.red: counts, conjunctions and disjunctions of living threads") {
  const std::string body = R"(
    setp.eq.u32 %q9, %r1, 0;
    @%q9 exit;
    setp.ne.u32 %q0, %r0, 0;
    bar.red.popc.u32 %r50, 0, %q0;
    bar.red.popc.u32 %r51, 1, !%q0;
    bar.red.and.pred %q1, 0, %q0;
    selp.u32 %r52, 1, 0, %q1;
    barrier.cta.red.or.aligned.pred %q1, 2, %q0;
    selp.u32 %r53, 1, 0, %q1;
    barrier.red.and.pred %q1, %r2, !%q0;
    selp.u32 %r54, 1, 0, %q1;
    barrier.red.or.pred %q1, %r2, %r3, !%q0;
    selp.u32 %r55, 1, 0, %q1;)";
  for (const std::uint32_t threads : {32u, 64u, 160u})
    for (int round = 0; round < 12; ++round) {
      LaneValues vote(threads), stays(threads);
      const std::uint32_t mode = generator() % 3;
      std::uint32_t yes = 0, alive = 0;
      for (std::uint32_t t = 0; t < threads; ++t) {
        vote[t] = mode == 0 ? 0 : mode == 1 ? 1 : static_cast<std::uint32_t>(generator() % 2);
        // One living thread in each warp at least: the count of the last barrier names all warps.
        stays[t] = t % 32 == 5 || round % 2 == 0 || generator() % 3;
        yes += stays[t] && vote[t];
        alive += stays[t];
      }
      const LaneOutcome got =
          run_lanes(body, {vote, stays, LaneValues(threads, 7), LaneValues(threads, threads)}, 6, threads, "",
                    static_cast<std::uint64_t>(round) + 1);
      CHECK(got.error == 0);
      CHECK(got.reports.empty());
      const LaneValues want{yes, alive - yes, yes == alive, yes != 0, yes == 0, yes != alive};
      for (std::uint32_t t = 0; t < threads; ++t)
        for (std::size_t k = 0; k < want.size(); ++k)
          CHECK(got.rows[k][t] == (stays[t] ? want[k] : untouched));
    }
}

TEST_CASE("barriers with counts let other warps be") {
  // Warps 0 and 1 count at barrier 3, warps 2 and 3 at barrier 4.
  const std::string body = warp_in_r40 + R"(
    setp.ne.u32 %q0, %r0, 0;
    shr.u32 %r41, %r40, 1;
    add.u32 %r41, %r41, 3;
    bar.red.popc.u32 %r50, %r41, 64, %q0;
    bar.sync 0;)";
  LaneValues vote(128);
  std::uint32_t yes[2] = {};
  for (std::size_t t = 0; t < 128; ++t) yes[t / 64] += vote[t] = static_cast<std::uint32_t>(generator() % 2);
  const LaneOutcome got = run_lanes(body, {vote}, 1, 128);
  CHECK(got.error == 0);
  CHECK(got.reports.empty());
  for (std::size_t t = 0; t < 128; ++t) CHECK(got.rows[0][t] == yes[t / 64]);
}

TEST_CASE("barrier without .aligned: lanes of a warp come from several places") {
  const std::string body = R"(
    mov.u32 %r50, 0;
    and.b32 %r41, %t, 1;
    setp.eq.u32 %q0, %r41, 0;
    @%q0 bra EVEN;
    barrier.red.popc.u32 %r50, 0, %q0;
    bra END;
  EVEN:
    barrier.cta.red.popc.u32 %r50, 0, %q0;
    add.u32 %r50, %r50, 100;
  END:)";
  const LaneOutcome got = run_lanes(body, {}, 1, 96);
  CHECK(got.error == 0);
  CHECK(got.reports.empty());
  for (std::uint32_t t = 0; t < 96; ++t) CHECK(got.rows[0][t] == (t % 2 ? 48 : 148));
}

TEST_CASE("a divergent bar.sync is reported, the same barrier after the lanes have joined is not") {
  const std::string divergent = R"(
    and.b32 %r41, %t, 1;
    setp.eq.u32 %q0, %r41, 0;
    @%q0 bra EVEN;
    bar.sync 0;
    bra END;
  EVEN:
    bar.sync 0;
  END:)";
  const LaneOutcome bad = run_lanes(divergent, {}, 0, 64);
  CHECK(bad.error == 719);
  CHECK(bad.reports == Kinds{"divergent-barrier"});
  const std::string joined = R"(
    and.b32 %r41, %t, 1;
    setp.eq.u32 %q0, %r41, 0;
    mov.u32 %r42, 0;
    @%q0 bra EVEN;
    add.u32 %r42, %r42, 1;
    bra END;
  EVEN:
    add.u32 %r42, %r42, 2;
  END:
    bar.sync 0;)";
  const LaneOutcome good = run_lanes(joined, {}, 0, 64);
  CHECK(good.error == 0);
  CHECK(good.reports.empty());
}

TEST_CASE("threads that exit do not count, threads that skip a barrier do") {
  const std::string exits =
      "setp.gt.u32 %q0, %t, 40;\n@%q0 exit;\nbar.sync 0;\nmov.u32 %r50, 1;\nbar.sync 0;";
  const LaneOutcome good = run_lanes(exits, {}, 1, 128);
  CHECK(good.error == 0);
  CHECK(good.reports.empty());
  CHECK(good.rows[0][40] == 1);
  CHECK(good.rows[0][41] == untouched);
  const LaneOutcome bad = run_lanes("setp.gt.u32 %q0, %t, 40;\n@!%q0 bar.sync 0;\nbar.sync 1;", {}, 0, 64);
  CHECK(bad.error == 719);
  CHECK(bad.reports == Kinds{"divergent-barrier"});
}

TEST_CASE("bar.warp.sync of parts of a warp, from several places") {
  // The odd lanes run ahead to their own barrier; the even ones hand values on among themselves.
  const std::string body = R"(
    mov.u32 %r41, buffer;
    shl.b32 %r42, %t, 2;
    add.u32 %r42, %r42, %r41;
    xor.b32 %r43, %t, 2;
    shl.b32 %r43, %r43, 2;
    add.u32 %r43, %r43, %r41;
    and.b32 %r44, %t, 1;
    setp.eq.u32 %q0, %r44, 0;
    st.shared.u32 [%r42], %t;
    @%q0 bra EVEN;
    bar.warp.sync 0xaaaaaaaa;
    ld.shared.u32 %r50, [%r43];
    bra END;
  EVEN:
    bar.warp.sync 0x55555555;
    ld.shared.u32 %r50, [%r43];
    bar.warp.sync 0x55555555;
  END:
    bar.warp.sync -1;)";
  const LaneOutcome got = run_lanes(body, {}, 1, 32, ".shared .align 4 .b8 buffer[128];");
  CHECK(got.error == 0);
  CHECK(got.reports.empty());
  for (std::uint32_t t = 0; t < 32; ++t) CHECK(got.rows[0][t] == (t ^ 2));
}

TEST_CASE("warps at different calls of __syncthreads() are a warning") {
  const std::string bodies[] = {
      warp_in_r40 +
          "setp.eq.u32 %q0, %r40, 0;\n@%q0 bra ZERO;\nbar.sync 0;\nbra END;\nZERO:\nbar.sync 0;\nEND:",
      warp_in_r40 + "setp.eq.u32 %q0, %r40, 0;\n@%q0 bar.sync 0;\n@!%q0 bar.sync 0;"};
  for (const std::string& body : bodies) {
    const LaneOutcome got = run_lanes(body, {}, 0, 96);
    CHECK(got.error == 0);
    CHECK(!got.reports.empty());
    for (const std::string& kind : got.reports) CHECK(kind == "barrier-place");
  }
  // Warps may wait at different places when they say how many they are, and where no single call is asked for.
  for (const char* const barrier : {"bar.sync 0, 96;", "barrier.sync 0;"}) {
    std::string body = bodies[0];
    for (std::size_t at; (at = body.find("bar.sync 0;")) != std::string::npos;) body.replace(at, 11, barrier);
    const LaneOutcome got = run_lanes(body, {}, 0, 96);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
  }
}

struct Fault {
  std::string what, body, kind;
  std::uint32_t threads = 64;
};

TEST_CASE("wrong barriers are reported") {
  const Fault faults[] = {
      {"count that is no multiple of 32", "bar.sync 1, 40;", "barrier"},
      {"number beyond 15", "mov.u32 %r41, 16;\nbar.sync %r41;", "barrier"},
      {"arrival without threads", "mov.u32 %r41, 0;\nbar.arrive 1, %r41;", "barrier"},
      {"lanes name different barriers", "and.b32 %r41, %t, 1;\nbarrier.sync %r41;", "barrier"},
      {"lanes name different counts",
       "and.b32 %r41, %t, 1;\nadd.u32 %r41, %r41, 1;\nshl.b32 %r41, %r41, 5;\nbarrier.sync 1, %r41;",
       "barrier"},
      {"warps name different counts",
       warp_in_r40 + "add.u32 %r40, %r40, 2;\nshl.b32 %r40, %r40, 5;\nbar.sync 1, %r40;", "barrier-count",
       96},
      {"reduction beside a plain barrier",
       warp_in_r40 + "setp.eq.u32 %q0, %r40, 0;\n@%q0 bar.sync 0;\n@!%q0 bar.red.popc.u32 %r50, 0, %q0;",
       "barrier-kind"},
      {"second arrival in one phase",
       "setp.lt.u32 %q0, %t, 32;\n@%q0 bar.arrive 1, 64;\n@%q0 bar.arrive 1, 64;\nbar.sync 1, 64;",
       "barrier-twice"},
      {"warps wait at different barriers", warp_in_r40 + "bar.sync %r40;", "unmatched-barrier"},
      {"fewer warps than the count", "bar.sync 1, 96;", "unmatched-barrier"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(fault.what);
    const LaneOutcome got = run_lanes(fault.body, {}, 1, fault.threads);
    CHECK(got.error == 719);
    CHECK(got.reports == Kinds{fault.kind});
  }
  const std::string twins[] = {
      "bar.sync 1, 64;",
      "mov.u32 %r41, 15;\nbar.sync %r41;",
      "mov.u32 %r41, 32;\nbar.arrive 1, %r41;",
      "and.b32 %r41, %t, 32;\nshr.u32 %r41, %r41, 5;\nbarrier.sync %r41, 32;",
      "setp.eq.u32 %q0, %t, 0;\nbar.sync 0;\nbar.red.popc.u32 %r50, 0, %q0;",
      "setp.lt.u32 %q0, %t, 32;\n@%q0 bar.arrive 1, 64;\n@!%q0 bar.sync 1, 64;\nbar.sync 0;\n@%q0 bar.arrive "
      "1, "
      "64;\n@!%q0 bar.sync 1, 64;",
  };
  for (const std::string& body : twins) {
    CAPTURE(body);
    const LaneOutcome got = run_lanes(body, {}, 0, 64);
    CHECK(got.reports.empty());
    CHECK(got.error == 0);
  }
}

}  // namespace
}  // namespace emulator::test

#include <doctest/doctest.h>

#include <set>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Kinds of the reports of a kernel of `threads` threads, sorted, each once, and its error if it has one. %r0 is the
/// thread's number, %r9 = s + 4 %r0 for an array s of 8192 bytes.
std::string reports_of(const std::string& body, std::uint32_t threads, std::uint64_t seed = 1) {
  Buffer buffer(4096);
  buffer.write(std::vector<std::byte>(4096).data(), 4096);
  take_reports();
  Module module(
      {kernel_text(
          1,
          ".shared .align 16 .b8 s[8192]; mov.u32 %r0, %tid.x; mov.u32 %r8, s; mad.lo.u32 %r9, %r0, 4, %r8;" +
              body)},
      0);
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  const int error = run(module, shape, Arguments().add(buffer.address()), "", seed);
  const std::vector<std::string> reports = take_reports();
  std::string kinds;
  for (const std::string& kind : std::set<std::string>(reports.begin(), reports.end())) kinds += kind + " ";
  if (error) kinds += "error " + std::to_string(error);
  return kinds;
}

void check_all_seeds(const std::string& body, std::uint32_t threads, const std::string& expected) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(body);
    CAPTURE(seed);
    CHECK(reports_of(body, threads, seed) == expected);
  }
}

const std::string clean, race = "shared-race ", unwritten = "uninitialised-shared ";

/// A branch on a 32-bit register.
std::string use(const std::string& name) { return "setp.lt.u32 %q9, " + name + ", 7; @%q9 bra used; used:"; }

}  // namespace

TEST_CASE("a read of another thread's word needs a barrier") {
  const std::string write = "st.shared.u32 [%r9], %r0;", barrier = "bar.sync 0;",
                    read = "xor.b32 %r1, %r0, 33; mad.lo.u32 %r2, %r1, 4, %r8; ld.shared.u32 %r3, [%r2];";
  check_all_seeds(write + barrier + read, 128, clean);
  CHECK(reports_of(write + read + use("%r3"), 128) !=
        clean);  // a race, or unwritten memory, by the order of warps
  check_all_seeds(write + barrier + read + write, 128, race);
  check_all_seeds(write + barrier + read + barrier + write, 128, clean);
}

TEST_CASE("lanes of one warp are ordered by bar.warp.sync, not by running together") {
  const std::string write = "st.shared.u32 [%r9], %r0;",
                    read = "xor.b32 %r1, %r0, 1; mad.lo.u32 %r2, %r1, 4, %r8; ld.shared.u32 %r3, [%r2];";
  check_all_seeds(write + "bar.warp.sync 0xffffffff;" + read, 64, clean);
  check_all_seeds(write + read, 64, race);
  check_all_seeds(write + "shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1;" + read, 64, race);
  // A mask that holds only one half of the warp orders that half.
  const std::string halves = "setp.lt.u32 %q1, %r0, 16;" + write +
                             "@%q1 bar.warp.sync 0xffff; @%q1 bra lower;"
                             "bar.warp.sync 0xffff0000; lower:";
  check_all_seeds(halves + read, 32, clean);
  check_all_seeds(halves + "xor.b32 %r1, %r0, 16; mad.lo.u32 %r2, %r1, 4, %r8; ld.shared.u32 %r3, [%r2];", 32,
                  race);
}

TEST_CASE("a flag in global memory hands over shared memory to the threads of its block") {
  const auto handover = [](const std::string& fence, const std::string& store, const std::string& load) {
    return "mov.u32 %r1, 0; setp.eq.u32 %q1, %r0, 40; setp.eq.u32 %q2, %r0, 0; @%q1 st.shared.u32 [%r8], 5; "
           "@%q1 " +
           fence + " @%q1 " + store + " [%p0], 1; @!%q2 bra END; SPIN: " + load +
           " %r1, [%p0]; setp.eq.u32 %q3, %r1, 0; @%q3 bra SPIN; membar.cta; ld.shared.u32 %r2, [%r8]; END:";
  };
  const std::string fence = "membar.gl;", none = "mov.u32 %r7, 0;";
  check_all_seeds(handover(fence, "st.volatile.global.u32", "ld.volatile.global.u32"), 64, clean);
  check_all_seeds(handover("fence.acq_rel.cta;", "st.relaxed.cta.global.u32", "ld.relaxed.cta.global.u32"),
                  64, clean);
  check_all_seeds(handover(none, "st.release.gpu.global.u32", "ld.acquire.gpu.global.u32"), 64, clean);
  check_all_seeds(handover(fence, "red.global.add.u32", "ld.volatile.global.u32"), 64, clean);
  check_all_seeds(handover(none, "st.volatile.global.u32", "ld.volatile.global.u32"), 64, race);
  check_all_seeds(handover(none, "red.global.add.u32", "ld.volatile.global.u32"), 64, race);
}

TEST_CASE("a reduction tree with and without its barriers") {
  const auto tree = [](const std::string& between) {
    std::string body = "st.shared.u32 [%r9], %r0; bar.sync 0;";
    for (int stride = 64; stride; stride /= 2)
      body += "setp.lt.u32 %q1, %r0, " + std::to_string(stride) + ";" + "@%q1 ld.shared.u32 %r1, [%r9+" +
              std::to_string(stride * 4) + "]; @%q1 ld.shared.u32 %r2, [%r9]; @%q1 add.u32 %r1, %r1, %r2;" +
              "@%q1 st.shared.u32 [%r9], %r1;" + between;
    return body;
  };
  check_all_seeds(tree("bar.sync 0;"), 128, clean);
  CHECK(reports_of(tree(""), 128) == race);
}

TEST_CASE("named barriers order those that take part") {
  // Warps 0 and 1 produce and arrive; warps 2 and 3 wait.
  const auto handover = [](const std::string& arrive, const std::string& wait) {
    return "setp.ge.u32 %q1, %r0, 64; @%q1 bra consumer; st.shared.u32 [%r9], %r0; " + arrive +
           "bra done; consumer: " + wait + "ld.shared.u32 %r1, [%r9+-256]; done:";
  };
  check_all_seeds(handover("bar.arrive 1, 128;", "bar.sync 1, 128;"), 128, clean);
  // What producers write after they have arrived is not ordered.
  check_all_seeds(handover("bar.arrive 1, 128; bar.warp.sync -1; st.shared.u32 [%r9], 5;",
                           "bar.sync 1, 128; bar.sync 2, 64;"),
                  128, race);
  // Pairs of warps with barriers of their own do not order the pairs among each other.
  const std::string pairs =
      "shr.u32 %r1, %r0, 6; add.u32 %r1, %r1, 1; st.shared.u32 [%r9], %r0; bar.sync %r1, 64;";
  check_all_seeds(pairs + "xor.b32 %r2, %r0, 32; mad.lo.u32 %r2, %r2, 4, %r8; ld.shared.u32 %r3, [%r2];", 128,
                  clean);
  CHECK(reports_of("st.shared.u32 [%r9], 0; bar.sync 0;" + pairs +
                       "xor.b32 %r2, %r0, 64; mad.lo.u32 %r2, %r2, 4, %r8; ld.shared.u32 %r3, [%r2];",
                   128) == race);
}

TEST_CASE("bytes and halves of one word belong to different threads") {
  const std::string halves = "mad.lo.u32 %r1, %r0, 2, %r8; cvt.u16.u32 %h1, %r0; st.shared.u16 [%r1], %h1;",
                    bytes = "add.u32 %r1, %r0, %r8; st.shared.u8 [%r1], %r0;";
  check_all_seeds(halves + "bar.sync 0; ld.shared.u16 %h2, [%r1]; ld.shared.u16 %h3, [%r8];", 64, clean);
  check_all_seeds(halves + "ld.shared.u16 %h2, [%r1];", 64, clean);
  check_all_seeds(bytes +
                      "ld.shared.u8 %h2, [%r1]; bar.sync 0; and.b32 %r2, %r0, 60; add.u32 %r2, %r2, %r8; "
                      "ld.shared.u32 %r3, [%r2];",
                  64, clean);
  check_all_seeds(
      bytes + "and.b32 %r2, %r0, 60; add.u32 %r2, %r2, %r8; bar.sync 0; ld.shared.u32 %r3, [%r2];" + bytes,
      64, race);
  check_all_seeds(halves + "setp.eq.u32 %q1, %r0, 0; @%q1 st.shared.u16 [%r8+2], %h1;", 64, race);
  // After a whole word is written its bytes are one again.
  check_all_seeds(bytes + "bar.sync 0; st.shared.u32 [%r9], %r0; bar.sync 0; ld.shared.u32 %r3, [%r8];", 64,
                  clean);
}

TEST_CASE("many readers of several warps, then a writer") {
  const std::string fill = "st.shared.u32 [%r9], %r0; bar.sync 0;", broadcast = "ld.shared.u32 %r1, [%r8];",
                    write = "setp.eq.u32 %q1, %r0, 7; @%q1 st.shared.u32 [%r8], %r0;";
  check_all_seeds(fill + broadcast + "bar.sync 0;" + write, 256, clean);
  check_all_seeds(fill + broadcast + write, 256, race);
  // The other warps have synchronised, one reader has not.
  check_all_seeds(fill + "setp.ge.u32 %q2, %r0, 224; @%q2 bra last;" + broadcast + "bar.sync 1, 224;" +
                      write + "bra done; last:" + broadcast + "done:",
                  256, race);
}

TEST_CASE("shared memory must be written before it is read") {
  check_all_seeds("ld.shared.u32 %r1, [%r9];" + use("%r1"), 32, unwritten);
  check_all_seeds("atom.shared.add.u32 %r1, [%r9], 1;", 32, unwritten);
  check_all_seeds("st.shared.u16 [%r9], %h1; ld.shared.u32 %r1, [%r9];" + use("%r1"), 32, unwritten);
  check_all_seeds("st.shared.u16 [%r9], %h1; ld.shared.u16 %r1, [%r9];" + use("%r1"), 32, clean);
  const std::string vector =
      "mad.lo.u32 %r7, %r0, 16, %r8; st.shared.u32 [%r7], 1; st.shared.u8 [%r7+4], 1; st.shared.u64 [%r7+8], "
      "1;";
  check_all_seeds(vector + "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r7];" + use("%r2"), 32, unwritten);
  check_all_seeds(vector + "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r7];" + use("%r4"), 32, clean);
  check_all_seeds(
      vector + ".pragma \"used_bytes_mask 65311\";\nld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r7];", 32,
      clean);
}

TEST_CASE("atomics do not race with each other, but with plain accesses") {
  const std::string clear = "setp.eq.u32 %q1, %r0, 0; @%q1 st.shared.u32 [%r8], 0;",
                    add = "atom.shared.add.u32 %r1, [%r8], 1;";
  check_all_seeds(clear + "bar.sync 0;" + add + "bar.sync 0; ld.shared.u32 %r2, [%r8];", 128, clean);
  check_all_seeds(clear + "bar.sync 0;" + add + "ld.shared.u32 %r2, [%r8];", 128, race);
  check_all_seeds(clear + add, 32, race);
}

TEST_CASE("a lock in shared memory orders with fences, not without") {
  const auto critical = [](const std::string& fence) {
    // One lane of each warp takes the lock; 4 warps.
    return "setp.eq.u32 %q1, %r0, 0; @%q1 st.shared.v2.u32 [%r8], {0, 0}; bar.sync 0; and.b32 %r1, %r0, 31; "
           "setp.ne.u32 %q2, %r1, 0;"
           "@%q2 bra done; spin: atom.shared.cas.b32 %r2, [%r8], 0, 1; setp.ne.u32 %q3, %r2, 0; @%q3 bra "
           "spin;" +
           fence + "ld.shared.u32 %r3, [%r8+4]; add.u32 %r3, %r3, 1; st.shared.u32 [%r8+4], %r3;" + fence +
           "atom.shared.exch.b32 %r2, [%r8], 0; done: bar.sync 0; ld.shared.u32 %r4, [%r8+4]; @%q1 "
           "st.global.u32 [%p0], %r4;";
  };
  check_all_seeds(critical("membar.cta;"), 128, clean);
  check_all_seeds(critical(""), 128, race);
}

TEST_CASE("races that write equal values are notes") {
  check_all_seeds("st.shared.u32 [%r8], 1;", 64, "shared-race-equal ");
  check_all_seeds("st.shared.u32 [%r8], %r0;", 64, race);
  // Lanes of one store, and of two stores.
  check_all_seeds("st.shared.u32 [%r8], 1;", 32, clean);
  check_all_seeds("st.shared.u32 [%r8], %r0;", 32, race);
  check_all_seeds(
      "st.shared.u32 [%r8], 1; and.b32 %r1, %r0, 1; setp.eq.u32 %q1, %r1, 0; @%q1 st.shared.u32 [%r8], 1;",
      32, "shared-race-equal ");
}

TEST_CASE("threads that have ended do not make later accesses races") {
  // The last 40 threads write and leave.
  check_all_seeds(
      "st.shared.u32 [%r9], %r0; setp.ge.u32 %q1, %r0, 88; @%q1 exit; bar.sync 0; ld.shared.u32 %r1, "
      "[%r9+160];",
      128, clean);
}

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Runs the body with one block of threads; p0: 256 words of input k * 3 + 1, p1: `words` of output, which come back.
struct Outcome {
  int error;
  std::vector<std::uint32_t> out;
  std::vector<std::string> reports;
};
Outcome run_block(const std::string& body, std::uint32_t threads, std::size_t words, std::uint64_t seed = 1) {
  Buffer input(4096), output(words * 4);
  std::vector<std::uint32_t> values(1024);
  for (std::uint32_t k = 0; k < values.size(); ++k) values[k] = 3 * k + 1;
  input.write(values.data(), 4096);
  const std::vector<std::uint32_t> zeros(words);
  output.write(zeros.data(), words * 4);
  Module module(
      {kernel_text(
          2, body,
          ".shared .align 8 .b64 full;\n.shared .align 8 .b64 empty;\n.shared .align 16 .b8 tile[4096];\n")},
      0);
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  Arguments arguments;
  arguments.add(input.address()).add(output.address());
  const int error = run(module, shape, arguments, "", seed);
  return {error, output.values<std::uint32_t>(words), take_reports()};
}

/// Initialises both barrier objects with the count, in thread 0, for all.
std::string initialised(int count) {
  const std::string n = std::to_string(count);
  return "setp.eq.u32 %q0, %t, 0;\n@%q0 mbarrier.init.shared.b64 [full], " + n +
         ";\n@%q0 mbarrier.init.shared.b64 [empty], " + n + ";\nbar.sync 0;\n";
}
/// A loop until the predicate %q9 that the statement sets is true.
std::string until(const std::string& label, const std::string& statement) {
  return label + ":\n" + statement + "\n@!%q9 bra " + label + ";\n";
}
/// %rd10, %rd11: addresses of the thread's words of input and output; %r10: of its word in the tile.
const std::string own_words =
    "mad.wide.u32 %rd10, %t, 4, %p0;\nmad.wide.u32 %rd11, %t, 4, %p1;\nmov.u32 %r11, tile;\nmad.lo.u32 %r10, "
    "%t, 4, %r11;\n";

}  // namespace

TEST_CASE("arrivals and waits by the state hand shared memory from thread to thread") {
  const std::string body = own_words + initialised(96) +
                           "ld.global.b32 %r1, [%rd10];\nst.shared.b32 [%r10], %r1;\n"
                           "mbarrier.arrive.shared.b64 %rd1, [full];\n" +
                           until("W", "mbarrier.test_wait.shared.b64 %q9, [full], %rd1;") +
                           "sub.u32 %r2, 95, %t;\nmad.lo.u32 %r3, %r2, 4, %r11;\nld.shared.b32 %r4, [%r3];\n"
                           "st.global.b32 [%rd11], %r4;\n";
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Outcome outcome = run_block(body, 96, 96, seed);
    CHECK(outcome.error == 0);
    CHECK(outcome.reports.empty());
    for (std::uint32_t k = 0; k < 96; ++k) CHECK(outcome.out[k] == 3 * (95 - k) + 1);
  }
}

TEST_CASE("a reader that does not wait for the barrier object races") {
  const std::string body = own_words + initialised(96) +
                           "st.shared.b32 [%r10], %t;\nmbarrier.arrive.shared.b64 %rd1, [full];\n"
                           "sub.u32 %r2, 95, %t;\nmad.lo.u32 %r3, %r2, 4, %r11;\nld.shared.b32 %r4, [%r3];\n"
                           "st.global.b32 [%rd11], %r4;\n";
  const Outcome outcome = run_block(body, 96, 96);
  CHECK_FALSE(outcome.reports.empty());
}

// One warp produces, the other consumes, through two barrier objects and the parity of their phases.
TEST_CASE("producer and consumer in phases") {
  const std::string body =
      own_words + initialised(32) +
      "setp.ge.u32 %q1, %t, 32;\nmov.u32 %r20, 0;\nand.b32 %r21, %t, 31;\nmad.lo.u32 %r22, %r21, 4, %r11;\n"
      "@%q1 bra consume;\n"
      "produce:\n"
      // Wait until the consumer has emptied the tile of the phase before; parity 1 is complete at the start.
      "not.b32 %r23, %r20;\nand.b32 %r23, %r23, 1;\n" +
      until("WE", "mbarrier.try_wait.parity.shared::cta.b64 %q9, [empty], %r23;") +
      "mad.lo.u32 %r24, %r20, 1000, %r21;\nst.shared.b32 [%r22], %r24;\n"
      "mbarrier.arrive.release.cta.shared::cta.b64 _, [full];\n"
      "add.u32 %r20, %r20, 1;\nsetp.lt.u32 %q2, %r20, 20;\n@%q2 bra produce;\nbra done;\n"
      "consume:\nand.b32 %r23, %r20, 1;\n" +
      until("WF", "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %q9, [full], %r23, 1000;") +
      "xor.b32 %r25, %r21, 31;\nmad.lo.u32 %r26, %r25, 4, %r11;\nld.shared.b32 %r27, [%r26];\n"
      "mad.lo.u32 %r28, %r20, 32, %r21;\nmad.wide.u32 %rd12, %r28, 4, %p1;\nst.global.b32 [%rd12], %r27;\n"
      "mbarrier.arrive.shared.b64 %rd2, [empty];\n"
      "add.u32 %r20, %r20, 1;\nsetp.lt.u32 %q2, %r20, 20;\n@%q2 bra consume;\ndone:\n";
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Outcome outcome = run_block(body, 64, 640, seed);
    CHECK(outcome.error == 0);
    CHECK(outcome.reports.empty());
    bool right = true;
    for (std::uint32_t k = 0; k < 640; ++k) right = right && outcome.out[k] == k / 32 * 1000 + (31 - k % 32);
    CHECK(right);
  }
}

TEST_CASE("counts: several arrivals at once, drops, pending_count") {
  // One thread does what six would: every state's pending count is stored, then whether the phase is complete.
  const std::string body =
      "mbarrier.init.shared.b64 [full], 6;\n"
      "mbarrier.arrive.noComplete.shared.b64 %rd1, [full], 2;\nmbarrier.pending_count.b64 %r1, "
      "%rd1;\nst.global.b32 [%p1], %r1;\n"
      "mbarrier.arrive.shared.b64 %rd2, [full];\nmbarrier.pending_count.b64 %r1, %rd2;\nst.global.b32 "
      "[%p1+4], %r1;\n"
      "mbarrier.arrive_drop.shared.b64 %rd3, [full];\nmbarrier.pending_count.b64 %r1, %rd3;\nst.global.b32 "
      "[%p1+8], %r1;\n"
      "mbarrier.test_wait.shared.b64 %q1, [full], %rd3;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 [%p1+12], "
      "%r1;\n"
      "mbarrier.arrive.shared.b64 %rd4, [full], 2;\n"
      "mbarrier.test_wait.shared.b64 %q1, [full], %rd3;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 [%p1+16], "
      "%r1;\n"
      // The next phase expects five.
      "mbarrier.arrive.shared.b64 %rd5, [full];\nmbarrier.pending_count.b64 %r1, %rd5;\nst.global.b32 "
      "[%p1+20], %r1;\n"
      "mbarrier.test_wait.parity.shared.b64 %q1, [full], 0;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 "
      "[%p1+24], %r1;\n"
      "mbarrier.test_wait.parity.shared.b64 %q1, [full], 1;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 "
      "[%p1+28], %r1;\n"
      "mbarrier.inval.shared.b64 [full];\n";
  const Outcome outcome = run_block(body, 1, 8);
  CHECK(outcome.error == 0);
  CHECK(outcome.reports.empty());
  CHECK(outcome.out == std::vector<std::uint32_t>{6, 4, 3, 0, 1, 5, 1, 0});
}

TEST_CASE("transactions: a phase waits for its bytes, which may come before they are expected") {
  const std::string body =
      "mov.u64 %rd9, full;\ncvta.shared.u64 %rd8, %rd9;\n"
      "mbarrier.init.b64 [%rd8], 1;\n"
      "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [full], 64;\n"
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd1, [full], 100;\n"
      "mbarrier.test_wait.b64 %q1, [%rd8], %rd1;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 [%p1], %r1;\n"
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [full], 4;\n"
      "mbarrier.complete_tx.shared::cta.b64 [full], 36;\n"
      "mbarrier.test_wait.b64 %q1, [%rd8], %rd1;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 [%p1+4], %r1;\n"
      "mbarrier.complete_tx.shared::cta.b64 [full], 4;\n"
      "mbarrier.test_wait.b64 %q1, [%rd8], %rd1;\nselp.u32 %r1, 1, 0, %q1;\nst.global.b32 [%p1+8], %r1;\n";
  const Outcome outcome = run_block(body, 1, 3);
  CHECK(outcome.error == 0);
  CHECK(outcome.reports.empty());
  CHECK(outcome.out == std::vector<std::uint32_t>{0, 0, 1});
}

TEST_CASE("cp.async arrives at a barrier object, with and without .noinc") {
  for (const bool noinc : {false, true}) {
    const std::string body = own_words + initialised(noinc ? 128 : 64) +
                             "cp.async.ca.shared.global [%r10], [%rd10], 4;\ncp.async.mbarrier.arrive" +
                             (noinc ? ".noinc" : "") +
                             ".shared.b64 [full];\nmbarrier.arrive.shared.b64 %rd1, [full];\n" +
                             until("W", "mbarrier.try_wait.shared.b64 %q9, [full], %rd1;") +
                             "xor.b32 %r2, %t, 63;\nmad.lo.u32 %r3, %r2, 4, %r11;\nld.shared.b32 %r4, "
                             "[%r3];\nst.global.b32 [%rd11], %r4;\n";
    const Outcome outcome = run_block(body, 64, 64);
    CHECK(outcome.error == 0);
    CHECK(outcome.reports.empty());
    for (std::uint32_t k = 0; k < 64; ++k) CHECK(outcome.out[k] == 3 * (63 - k) + 1);
  }
}

TEST_CASE("bulk copies in both directions") {
  const std::string body = own_words + initialised(64) +
                           "@%q0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [full], 256;\n"
                           "@%q0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], "
                           "[%p0+64], 256, [full];\n"
                           "mbarrier.arrive.shared.b64 %rd1, [full];\n" +
                           until("W", "mbarrier.try_wait.shared.b64 %q9, [full], %rd1;") +
                           "ld.shared.b32 %r4, [%r10];\nadd.u32 %r4, %r4, 5;\nst.shared.b32 [%r10], %r4;\n"
                           "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
                           "@%q0 cp.async.bulk.global.shared::cta.bulk_group [%p1], [%r11], 256;\n"
                           "@%q0 cp.async.bulk.commit_group;\n@%q0 cp.async.bulk.wait_group.read 0;\n";
  const Outcome outcome = run_block(body, 64, 64);
  CHECK(outcome.error == 0);
  CHECK(outcome.reports.empty());
  for (std::uint32_t k = 0; k < 64; ++k) CHECK(outcome.out[k] == 3 * (16 + k) + 1 + 5);
}

TEST_CASE("wrong uses of barrier objects are reported") {
  const auto faulty = [](const std::string& body) {
    const Outcome outcome = run_block(body, 1, 1);
    CHECK(outcome.error == 719);
    CHECK(std::count(outcome.reports.begin(), outcome.reports.end(), "mbarrier") == 1);
  };
  faulty("mbarrier.init.shared.b64 [full], 0;\n");
  faulty(
      "mbarrier.init.shared.b64 [full], 2;\nmbarrier.inval.shared.b64 [full];\nmbarrier.arrive.shared.b64 "
      "%rd1, [full];\n");
  faulty("mbarrier.init.shared.b64 [full], 2;\nmbarrier.arrive.shared.b64 %rd1, [full], 3;\n");
  faulty("mbarrier.init.shared.b64 [full], 2;\nmbarrier.arrive.noComplete.shared.b64 %rd1, [full], 2;\n");
  faulty(
      "mbarrier.init.shared.b64 [full], 2;\nmbarrier.expect_tx.relaxed.cta.shared::cta.b64 [full], "
      "1048576;\n");
  faulty("st.shared.b64 [full], 0;\nmbarrier.arrive.shared.b64 %rd1, [full];\n");
}

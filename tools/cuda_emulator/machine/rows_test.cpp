#include "machine/rows.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Runs `body`, which leaves a value of each thread in %r0, on blocks of 32 threads.
std::vector<std::uint32_t> run_blocks(Module& module, std::uint32_t blocks, std::uint64_t seed = 1) {
  Buffer out(std::uint64_t{blocks} * 32 * 4);
  LaunchShape shape;
  shape.grid = {blocks, 1, 1};
  shape.block = {32, 1, 1};
  CHECK(run(module, shape, Arguments().add(out.address()), "", seed) == 0);
  take_reports();
  return out.values<std::uint32_t>(std::size_t{blocks} * 32);
}
Module module_of(const std::string& body) {
  return Module({kernel_text(1, body + "\nmad.wide.u32 %rd0, %t, 4, %p0;\nst.global.u32 [%rd0], %r0;")}, 0);
}

TEST_CASE("rows: values that are not needed at one time share a row") {
  std::string chain = ".reg .b32 %v<1000>;\nmov.u32 %v0, %t;\n";
  for (int k = 1; k < 1000; ++k)
    chain += "add.u32 %v" + std::to_string(k) + ", %v" + std::to_string(k - 1) + ", 1;\n";
  Module module = module_of(chain + "mov.u32 %r0, %v999;");
  CHECK(module.kernel("k")->function->register_bytes < 20 * row_bytes(4));
  CHECK(module.kernel("k")->function->read_first.empty());
  const auto values = run_blocks(module, 1);
  for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == lane + 999);
}

TEST_CASE("rows: a register that may be read before it is written is zero in every block") {
  // %r1 is written by odd lanes; the others fill the memory of later blocks with what must not be seen.
  std::string body =
      "and.b32 %r2, %t, 1;\nsetp.ne.u32 %q0, %r2, 0;\n@%q0 mov.u32 %r1, 7;\nmov.u32 %r0, %r1;\n";
  for (int k = 10; k < 60; ++k)
    body += "add.u32 %r" + std::to_string(k) + ", %t, " + std::to_string(1000 * k) + ";\n";
  body += "mov.u32 %r3, 0;\n";
  for (int k = 10; k < 60; ++k) body += "add.u32 %r3, %r3, %r" + std::to_string(k) + ";\n";
  body += "setp.eq.u32 %q1, %r3, 1;\n@%q1 mov.u32 %r0, %r3;\n";
  Module module = module_of(body);
  CHECK(module.kernel("k")->function->read_first.size() == 1);
  for (const std::uint64_t seed : {1, 2}) {
    const auto values = run_blocks(module, 40, seed);
    for (std::size_t thread = 0; thread < values.size(); ++thread)
      CHECK(values[thread] == (thread % 2 ? 7 : 0));
  }
}

TEST_CASE("rows: a value that a loop needs in each round keeps its row") {
  // The loop writes %r11 ... %r14 behind the last place in the text that reads %r10.
  Module module = module_of(
      "add.u32 %r10, %t, 100;\nmov.u32 %r1, 0;\nmov.u32 %r0, 0;\n"
      "again:\nadd.u32 %r0, %r0, %r10;\nmul.lo.u32 %r11, %r1, 3;\nadd.u32 %r12, %r11, 5;\nxor.b32 %r13, "
      "%r12, %r11;\n"
      "add.u32 %r14, %r13, %r12;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %q0, %r1, 10;\n@%q0 bra again;");
  const auto values = run_blocks(module, 1);
  for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == 10 * (lane + 100));
}

TEST_CASE("rows: lanes at different places do not disturb each other") {
  // Even lanes need %r10 behind the meeting of the ways, odd lanes %r20: what one way writes may lie where the other's
  // values do.
  Module module = module_of(
      "and.b32 %r2, %t, 1;\nsetp.eq.u32 %q0, %r2, 0;\n@%q0 bra even;\n"
      "add.u32 %r20, %t, 2000;\nmul.lo.u32 %r21, %r20, 3;\nbar.warp.sync 0xaaaaaaaa;\nsub.u32 %r22, %r21, "
      "%r20;\n"
      "sub.u32 %r23, %r22, %r20;\nmov.u32 %r0, %r23;\nbra together;\n"
      "even:\nadd.u32 %r10, %t, 1000;\nmul.lo.u32 %r11, %r10, 5;\nbar.warp.sync 0x55555555;\nsub.u32 %r12, "
      "%r11, %r10;\n"
      "sub.u32 %r13, %r12, %r10;\nmov.u32 %r0, %r13;\n"
      "together:\nbar.warp.sync 0xffffffff;");
  for (const std::uint64_t seed : {1, 2, 3}) {
    const auto values = run_blocks(module, 1, seed);
    for (std::uint32_t lane = 0; lane < 32; ++lane)
      CHECK(values[lane] == (lane % 2 ? lane + 2000 : 3 * (lane + 1000)));
  }
}

TEST_CASE("rows: a value that lives across an indexed branch keeps its row") {
  Module module = module_of(
      ".reg .b32 %w<5>;\nadd.u32 %w0, %t, 50;\nand.b32 %r1, %t, 3;\nways: .branchtargets w0, w1, w2, w3;\n"
      "brx.idx %r1, ways;\n"
      "w0:\nmov.u32 %w1, 1;\nadd.u32 %r0, %w0, %w1;\nbra done;\nw1:\nmov.u32 %w2, 2;\nadd.u32 %r0, %w0, "
      "%w2;\nbra done;\n"
      "w2:\nmov.u32 %w3, 3;\nadd.u32 %r0, %w0, %w3;\nbra done;\nw3:\nmov.u32 %w4, 4;\nadd.u32 %r0, %w0, "
      "%w4;\ndone:\n");
  const auto values = run_blocks(module, 1);
  for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == lane + 50 + lane % 4 + 1);
}

}  // namespace

#include <doctest/doctest.h>

#include "tests/harness.h"

namespace emulator::test {
namespace {

/// Reports of a kernel with this statement.
std::vector<std::string> reports_of(const std::string& statement) {
  Buffer buffer(64);
  buffer.write(std::vector<std::byte>(64).data(), 64);
  take_reports();
  Module module(
      {kernel_text(1,
                   "mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r3, 3; mov.f32 %f1, 0f00000000;\n"
                   "mov.f32 %f2, 0f00000000; mov.b16 %h1, 0; mov.b64 %rd1, 0; setp.eq.u32 %q0, %r1, 1;\n" +
                       statement,
                   ".shared .align 16 .b8 s[64];")},
      0);
  run(module, {}, Arguments().add(buffer.address()));
  return take_reports();
}

TEST_CASE("operands and modifiers that no decoder takes make a statement unknown") {
  struct Pair {
    const char* statement;
    const char* surplus;
  };
  const Pair pairs[] = {
      {"add.s32 %r4, %r1, %r2", ", %r3"},
      {"mad.lo.u32 %r4, %r1, %r2, %r3", ", %r3"},
      {"add.rn.f32 %f3, %f1, %f2", ", %f2"},
      {"shl.b32 %r4, %r1, %r2", ", 1"},
      {"lop3.b32 %r4, %r1, %r2, %r3, 0x80", ", %q0"},
      {"mov.u32 %r4, %r1", ", %r2"},
      {"cvt.u64.u32 %rd2, %r1", ", %r2"},
      {"selp.u32 %r4, %r1, %r2, %q0", ", %q0"},
      {"setp.eq.u32 %q1, %r1, %r2", ", %q0"},
      {"ld.global.u32 %r4, [%p0]", ", %r1"},
      {"st.global.u32 [%p0], %r1", ", %r1"},
      {"atom.global.add.u32 %r4, [%p0], %r1", ", %r2"},
      {"red.global.add.u32 [%p0], %r1", ", %r2"},
      {"prefetch.global.L1 [%p0]", ", %r1"},
      {"bar.sync 0", ", 32, 32"},
      {"bar.warp.sync 1", ", 1"},
      {"shfl.sync.idx.b32 %r4, %r1, 0, 31, 1", ", 1"},
      {"vote.sync.ballot.b32 %r4, %q0, 1", ", 1"},
      {"activemask.b32 %r4", ", 1"},
      {"cp.async.wait_group 0", ", 0"},
      {"cp.async.wait_all", " 1"},
      {"membar.cta", " 1"},
      {"fence.acq_rel.gpu", " [%p0]"},
      {"nanosleep.u32 10", ", 10"},
      {"ret", " %r1"},
      {"exit", " %r1"},
      {"griddepcontrol.wait", " 1"},
  };
  for (const auto& [statement, surplus] : pairs) {
    CAPTURE(statement);
    CHECK(reports_of(std::string(statement) + ";").empty());
    CHECK(reports_of(std::string(statement) + surplus + ";") ==
          std::vector<std::string>{"unknown-instruction"});
  }
  CHECK(reports_of("add.s32.wide %r4, %r1, %r2;") == std::vector<std::string>{"unknown-instruction"});
}

TEST_CASE("operands that mean nothing to the emulator are no surplus") {
  for (const char* statement :
       {"ld.global.L2::cache_hint.u32 %r4, [%p0], %rd1", "st.global.L2::cache_hint.u32 [%p0], %r1, %rd1",
        "red.global.add.L2::cache_hint.u32 [%p0], %r1, %rd1", "pmevent 1",
        "{ .reg .b32 a; mov.u32 a, s; cp.async.ca.shared.global.L2::cache_hint [a], [%p0], 4, %rd1; }"}) {
    CAPTURE(statement);
    CHECK(reports_of(std::string(statement) + ";").empty());
  }
}

}  // namespace
}  // namespace emulator::test

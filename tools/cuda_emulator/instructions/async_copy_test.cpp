#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Runs threads with %r9 = address of the thread's 16 bytes of a shared array of `s`, %rd1 and %rd2 those of its 16 bytes of the
/// buffers in and out. Returns kinds of reports, and the error if there is one.
std::string reports_of(const std::string& body, const Buffer& in, const Buffer& out,
                       std::uint32_t threads = 64) {
  take_reports();
  Module module(
      {kernel_text(
          2,
          ".shared .align 16 .b8 s[16384]; mov.u32 %r0, %tid.x; mov.u32 %r8, s; mad.lo.u32 %r9, %r0, 16, %r8;"
          "mad.wide.u32 %rd1, %r0, 16, %p0; mad.wide.u32 %rd2, %r0, 16, %p1;" +
              body)},
      0);
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  const int error = run(module, shape, Arguments().add(in.address()).add(out.address()));
  const std::vector<std::string> reports = take_reports();
  std::string kinds;
  for (const std::string& kind : std::set<std::string>(reports.begin(), reports.end())) kinds += kind + " ";
  if (error) kinds += "error " + std::to_string(error);
  return kinds;
}

struct Data {
  Buffer in{4096}, out{4096};
  std::vector<std::uint32_t> words = std::vector<std::uint32_t>(1024);
  Data() {
    std::iota(words.begin(), words.end(), 0x8070'6050u);
    in.write(words.data(), 4096);
    out.write(words.data(), 4096);
  }
};

const std::string read_back =
    "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r9]; st.global.v4.u32 [%rd2], {%r1, %r2, %r3, %r4};";

}  // namespace

TEST_CASE("cp.async moves its bytes and fills the rest with zeros") {
  Data d;
  CHECK(reports_of("cp.async.cg.shared.global [%r9], [%rd1], 16; cp.async.wait_all;" + read_back, d.in,
                   d.out) == "");
  CHECK(d.out.values<std::uint32_t>(256) ==
        std::vector<std::uint32_t>(d.words.begin(), d.words.begin() + 256));
  // Source sizes of 4 (thread % 5) bytes; 0 reads nothing, wherever the source lies.
  CHECK(reports_of("rem.u32 %r5, %r0, 5; mul.lo.u32 %r5, %r5, 4; setp.eq.u32 %q1, %r5, 0; selp.b64 %rd3, 16, "
                   "%rd1, %q1;"
                   "cp.async.ca.shared.global.L2::128B [%r9+0], [%rd3+0], 16, %r5; cp.async.commit_group; "
                   "cp.async.wait_group 0;" +
                       read_back,
                   d.in, d.out) == "");
  const auto partial = d.out.values<std::uint32_t>(256);
  for (std::uint32_t t = 0; t < 64; ++t)
    for (std::uint32_t k = 0; k < 4; ++k) CHECK(partial[t * 4 + k] == (k < t % 5 ? d.words[t * 4 + k] : 0));
  // Predicate ignore-src, displacements on both sides, 4-byte copies.
  CHECK(reports_of("and.b32 %r5, %r0, 1; setp.eq.u32 %q1, %r5, 0;"
                   "cp.async.ca.shared.global [%r9+4], [%rd1+8], 4, %q1; cp.async.ca.shared.global [%r9], "
                   "[%rd1], 4, 4;"
                   "cp.async.ca.shared.global [%r9+8], [%rd1+8], 8; cp.async.wait_all;" +
                       read_back,
                   d.in, d.out) == "");
  const auto pieces = d.out.values<std::uint32_t>(256);
  for (std::uint32_t t = 0; t < 64; ++t) {
    CHECK(pieces[t * 4] == d.words[t * 4]);
    CHECK(pieces[t * 4 + 1] == (t % 2 ? d.words[t * 4 + 2] : 0));
    CHECK(pieces[t * 4 + 3] == d.words[t * 4 + 3]);
  }
}

TEST_CASE("a copy lands when its group is waited for, and not before") {
  Data d;
  const std::string two_groups =
      "cp.async.cg.shared.global [%r9], [%rd1], 16; cp.async.commit_group;"
      "cp.async.cg.shared.global [%r9+4096], [%rd1+1024], 16; cp.async.commit_group;";
  CHECK(reports_of(two_groups + "cp.async.wait_group 1;" + read_back, d.in, d.out) == "");
  CHECK(reports_of(two_groups + "cp.async.wait_group 2;" + read_back, d.in, d.out) == "copy-in-flight ");
  CHECK(reports_of(two_groups + "cp.async.wait_group 1; ld.shared.u32 %r1, [%r9+4096];", d.in, d.out) ==
        "copy-in-flight ");
  CHECK(reports_of(two_groups + "cp.async.wait_group 0; ld.shared.u32 %r1, [%r9+4096];", d.in, d.out) == "");
  CHECK(
      reports_of("cp.async.cg.shared.global [%r9], [%rd1], 16; st.shared.u32 [%r9+4], 1; cp.async.wait_all;",
                 d.in, d.out) == "copy-in-flight ");
  // Without checks on the way the old contents would be read: 16 bytes written before stay until the wait.
  CHECK(reports_of("mov.u32 %r1, 9; st.shared.v4.u32 [%r9], {%r1, %r1, %r1, %r1}; cp.async.cg.shared.global "
                   "[%r9], [%rd1], 16;" +
                       read_back,
                   d.in, d.out) == "copy-in-flight ");
  CHECK(d.out.values<std::uint32_t>(4) == std::vector<std::uint32_t>{9, 9, 9, 9});
}

TEST_CASE("other threads need the copier's wait and a barrier") {
  Data d;
  const std::string copy = "cp.async.cg.shared.global [%r9], [%rd1], 16;",
                    read_other =
                        "xor.b32 %r5, %r0, 40; mad.lo.u32 %r5, %r5, 16, %r8; ld.shared.u32 %r6, [%r5];";
  CHECK(reports_of(copy + "cp.async.wait_all; bar.sync 0;" + read_other, d.in, d.out) == "");
  CHECK(reports_of(copy + "bar.sync 0;" + read_other + "cp.async.wait_all;", d.in, d.out)
            .starts_with("copy-in-flight "));
  CHECK(reports_of(copy + "bar.sync 0; cp.async.wait_all;" + read_other, d.in, d.out)
            .starts_with("copy-in-flight "));
  // A stage is filled again while others may still read it.
  CHECK(reports_of(copy + "cp.async.wait_all; bar.sync 0;" + read_other + copy + "cp.async.wait_all;", d.in,
                   d.out) == "shared-race ");
  CHECK(reports_of(copy + "cp.async.wait_all; bar.sync 0;" + read_other + "bar.sync 0;" + copy +
                       "cp.async.wait_all;",
                   d.in, d.out) == "");
}

TEST_CASE("the source of a copy may not change before its wait") {
  Data d;
  CHECK(reports_of("cp.async.cg.shared.global [%r9], [%rd1], 16; st.global.u32 [%rd1], 5; cp.async.wait_all;",
                   d.in, d.out) == "copy-source-changed ");
  CHECK(reports_of("cp.async.cg.shared.global [%r9], [%rd1], 16; cp.async.wait_all; st.global.u32 [%rd1], 5;",
                   d.in, d.out) == "");
}

TEST_CASE("bounds, alignment and sizes of copies") {
  Data d;
  CHECK(reports_of("cp.async.cg.shared.global [%r9], [%rd1+8], 16;", d.in, d.out) == "misaligned error 716");
  CHECK(reports_of("cp.async.ca.shared.global [%r9+4], [%rd1], 8;", d.in, d.out) == "misaligned error 716");
  CHECK(reports_of("cp.async.ca.shared.global [%r9], [%rd1+4096], 16;", d.in, d.out) ==
        "out-of-bounds error 700");
  CHECK(reports_of("cp.async.ca.shared.global [%r9+16384], [%rd1], 16;", d.in, d.out) ==
        "out-of-bounds error 700");
  CHECK(reports_of("cp.async.ca.shared.global [%r9], [%rd1], 4, 8;", d.in, d.out) == "copy-size error 715");
  // A copy outlives its thread.
  CHECK(reports_of("cp.async.ca.shared.global [%r9], [%rd1], 16;", d.in, d.out) == "");
}

#include <doctest/doctest.h>

#include <bit>
#include <set>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Kinds of the reports of a kernel of 32 threads, each once. %r0: the thread's number; %r9: s + 16 %r0, for an array that nobody has
/// written; %r1: a word of it; %rd9: %p0 + 16 %r0, for global memory that nobody has written; %p1: written global memory.
std::string reports_of(const std::string& body, const std::string& declarations = "") {
  Buffer unwritten(4096), written(4096);
  const std::vector<std::uint32_t> zeros(1024);
  written.write(zeros.data(), 4096);
  take_reports();
  Module module({kernel_text(2,
                             ".shared .align 16 .b8 s[8192]; mov.u32 %r0, %tid.x; mov.u32 %r8, s; "
                             "mad.lo.u32 %r9, %r0, 16, %r8; mad.wide.u32 %rd9, %r0, 16, %p0; "
                             "mad.wide.u32 %rd10, %r0, 16, %p1; ld.shared.u32 %r1, [%r9];" +
                                 body,
                             declarations)},
                0);
  LaunchShape shape;
  shape.block = {32, 1, 1};
  const int error = run(module, shape, Arguments().add(unwritten.address()).add(written.address()));
  const std::vector<std::string> reports = take_reports();
  std::string kinds;
  for (const std::string& kind : std::set<std::string>(reports.begin(), reports.end())) kinds += kind + " ";
  if (error) kinds += "error " + std::to_string(error);
  return kinds;
}

const std::string clean, shared = "uninitialised-shared ", global = "uninitialised-global ";

/// The statements leave in %r2 a value of which just these bits are undefined.
void check_bits(const std::string& statements, std::uint32_t undefined) {
  CAPTURE(statements);
  const auto use = [&](std::uint32_t mask) {
    return reports_of(statements + "and.b32 %r3, %r2, " + std::to_string(mask) +
                      "; setp.ne.u32 %q9, %r3, 0; @%q9 bra end; end:");
  };
  CHECK(use(~undefined) == clean);
  if (!undefined) return;
  CHECK(use(undefined & -undefined) == shared);
  CHECK(use(std::bit_floor(undefined)) == shared);
}

const std::string half = "ld.shared.u16 %r4, [%r9];";  // %r4: its lower half is undefined
const std::string high = "shl.b32 %r4, %r1, 8;";       // %r4: all but the lowest byte

}  // namespace

TEST_CASE("undefined bits move with the value") {
  check_bits("mov.b32 %r2, %r1;", ~0u);
  check_bits("mov.b32 %r2, %r1; mov.b32 %r2, 5;", 0);
  check_bits("ld.shared.u16 %r2, [%r9];", 0xffff);
  check_bits("ld.shared.s16 %r2, [%r9];", ~0u);
  check_bits("ld.shared.u8 %r2, [%r9];", 0xff);
  check_bits("st.shared.u8 [%r9+1], 7; ld.shared.u32 %r2, [%r9];", 0xffff00ff);
  check_bits("st.shared.u32 [%r9+4], 7; ld.shared.v2.u32 {%r2, %r3}, [%r9];", ~0u);
  check_bits("st.shared.u32 [%r9+4], 7; ld.shared.v2.u32 {%r3, %r2}, [%r9];", 0);
  check_bits("shl.b32 %r2, %r1, 8;", 0xffffff00);
  check_bits("shl.b32 %r2, %r1, 32;", 0);
  check_bits("shr.u32 %r2, %r1, 8;", 0x00ffffff);
  check_bits("shr.s32 %r2, %r1, 8;", ~0u);
  check_bits("shl.b32 %r2, 1, %r1;", ~0u);
  check_bits(half + "shr.s32 %r2, %r4, 4;", 0xfff);
  check_bits(half + "shf.l.wrap.b32 %r2, %r4, 0, 24;", 0x000000ff);
  check_bits(half + "shf.r.clamp.b32 %r2, 0, %r4, 16;", 0xffff0000);
  check_bits(half + "prmt.b32 %r2, %r4, 0, 0x4140;", 0x00ff00ff);
  check_bits("prmt.b32 %r2, 1, 2, %r1;", ~0u);
  check_bits("bfe.u32 %r2, %r1, 8, 4;", 0xf);
  check_bits("bfe.s32 %r2, %r1, 8, 4;", ~0u);
  check_bits(half + "bfe.u32 %r2, %r4, 12, 8;", 0xf);
  check_bits("bfi.b32 %r2, %r1, 0, 4, 8;", 0xff0);
  check_bits(half + "brev.b32 %r2, %r4;", 0xffff0000);
  check_bits("cvt.u32.u8 %r2, %r1;", 0xff);
  check_bits("cvt.s32.s8 %r2, %r1;", ~0u);
  check_bits("cvt.u16.u32 %h1, %r1; mov.b16 %h2, 0; mov.b32 %r2, {%h2, %h1};", 0xffff0000);
  check_bits("mov.b32 {%h1, %h2}, %r1; cvt.u32.u16 %r2, %h2;", 0xffff);
  check_bits(half + "mov.b32 {%h1, %h2}, %r4; cvt.u32.u16 %r2, %h2;", 0);
  check_bits("mov.b64 %rd1, {%r0, %r1}; shr.u64 %rd1, %rd1, 16; cvt.u32.u64 %r2, %rd1;", 0xffff0000);
  check_bits("mov.b64 %rd1, {%r0, %r1}; mov.b64 {%r2, %r3}, %rd1;", 0);
}

TEST_CASE("what is selected away is not used") {
  check_bits("setp.lt.u32 %q1, %r0, 99; selp.b32 %r2, %r0, %r1, %q1;", 0);
  check_bits("setp.lt.u32 %q1, %r0, 99; selp.b32 %r2, %r1, %r0, %q1;", ~0u);
  check_bits("setp.lt.u32 %q1, %r1, 99; selp.b32 %r2, 1, 2, %q1;", ~0u);
  check_bits("slct.b32.s32 %r2, %r0, %r1, 1;", 0);
  check_bits("slct.b32.s32 %r2, %r0, %r1, -1;", ~0u);
  check_bits("slct.b32.s32 %r2, 1, 2, %r1;", ~0u);
}

TEST_CASE("logic: a bit that the sources' defined bits decide is defined") {
  check_bits("and.b32 %r2, %r1, 0xff0;", 0xff0);
  check_bits("or.b32 %r2, %r1, 0xff0;", ~0xff0u);
  check_bits("xor.b32 %r2, %r1, 0xff0;", ~0u);
  check_bits(half + "not.b32 %r2, %r4;", 0xffff);
  check_bits("lop3.b32 %r2, %r1, 0xff, 0xf, 0x80;", 0xf);      // and of three
  check_bits("lop3.b32 %r2, 0xff, 0xf0, %r1, 0xca;", ~0xffu);  // a ? b : c
  check_bits("lop3.b32 %r2, %r1, 5, 6, 0xaa;", 0);             // c
  const std::string use = "selp.b32 %r2, 1, 0, %q3;", undefined = "setp.eq.u32 %q1, %r1, 0;";
  const std::string never = "setp.gt.u32 %q2, %r0, 99;", always = "setp.lt.u32 %q2, %r0, 99;";
  check_bits(undefined + never + "and.pred %q3, %q1, %q2;" + use, 0);
  check_bits(undefined + always + "and.pred %q3, %q1, %q2;" + use, ~0u);
  check_bits(undefined + always + "or.pred %q3, %q1, %q2;" + use, 0);
  check_bits(undefined + never + "or.pred %q3, %q2, %q1;" + use, ~0u);
  check_bits(undefined + never + "xor.pred %q3, %q2, %q1;" + use, ~0u);
  check_bits(undefined + "not.pred %q3, %q1;" + use, ~0u);
  check_bits(undefined + always + "not.pred %q1, %q2; mov.pred %q3, %q1;" + use, 0);
}

TEST_CASE("comparisons use all bits, but integers that differ in a defined bit are different") {
  const std::string use = "selp.b32 %r2, 1, 0, %q3;", never = "setp.gt.u32 %q2, %r0, 99;";
  check_bits(half + "setp.lt.u32 %q3, %r4, 7;" + use, ~0u);
  check_bits(half + "setp.eq.u32 %q3, %r4, 7;" + use, ~0u);
  check_bits(half + "setp.eq.u32 %q3, %r4, 0x10007;" + use, 0);
  check_bits(half + "set.ne.u32.u32 %r2, %r4, 0x10007;", 0);
  check_bits("mov.b32 %f1, %r1; setp.neu.f32 %q3, %f1, 0f00000000;" + use, ~0u);
  check_bits(never + "setp.lt.and.u32 %q3, %r1, 7, %q2;" + use, 0);
  check_bits(never + "setp.lt.and.u32 %q3, %r1, 7, !%q2;" + use, ~0u);
  check_bits(never + "setp.lt.or.u32 %q3|%q4, %r1, 7, !%q2;" + use, 0);
  check_bits(never + "setp.lt.or.u32 %q4|%q3, %r1, 7, %q2;" + use, ~0u);
  check_bits("set.lt.u32.u32 %r2, %r1, 7;", ~0u);
}

TEST_CASE("arithmetic") {
  check_bits(high + "add.u32 %r2, %r4, 1;", 0xffffff00);
  check_bits(high + "sub.u32 %r2, 1, %r4;", 0xffffff00);
  check_bits(high + "mul.lo.u32 %r2, %r4, 3;", 0xffffff00);
  check_bits(high + "mad.lo.u32 %r2, %r0, 3, %r4;", 0xffffff00);
  check_bits(high + "mul.hi.u32 %r2, %r4, 3;", ~0u);
  check_bits(high + "min.u32 %r2, %r4, 3;", ~0u);
  check_bits(high + "mul.wide.u32 %rd1, %r4, 2; cvt.u32.u64 %r2, %rd1;", 0xffffff00);
  check_bits("popc.b32 %r2, %r1;", ~0u);
  check_bits("add.cc.u32 %r3, %r1, 1; addc.u32 %r2, 0, 0;", ~0u);
  check_bits("add.cc.u32 %r3, %r1, 1; add.cc.u32 %r3, 1, 1; addc.u32 %r2, 0, 0;", 0);
  check_bits("mov.b32 %f1, %r1; fma.rn.f32 %f2, %f1, %f1, 0f00000000; mov.b32 %r2, %f2;", ~0u);
  check_bits(half + "add.f16x2 %r2, %r4, 0;", 0xffff);
  check_bits(half + "neg.bf16x2 %r2, %r4;", 0xffff);
  check_bits("mov.b32 %f1, %r1; cvt.rn.f16x2.f32 %r2, %f1, 0f00000000;", 0xffff0000);
  check_bits("mov.b32 %f1, %r1; cvt.rn.f16x2.f32 %r2, 0f00000000, %f1;", 0xffff);
  check_bits("cvt.rn.f32.u32 %f1, %r1; mov.b32 %r2, %f1;", ~0u);
}

TEST_CASE("uses are reported") {
  CHECK(reports_of("") == clean);
  CHECK(reports_of("st.global.u32 [%rd10], %r1;") == shared);
  CHECK(reports_of("and.b32 %r2, %r1, 12; add.u32 %r2, %r2, %r9; ld.shared.u32 %r3, [%r2];") == shared);
  CHECK(reports_of("setp.eq.u32 %q1, %r1, 0; @%q1 mov.u32 %r2, 1;") == shared);
  CHECK(reports_of("setp.eq.u32 %q1, %r1, 0; @%q1 bra end; end:") == shared);
  CHECK(reports_of("red.global.add.u32 [%rd10], %r1;") == shared);
  CHECK(reports_of("atom.shared.add.u32 %r2, [%r9], 1;") == shared);
  CHECK(reports_of("setp.eq.u32 %q1, %r1, 0; vote.sync.any.pred %q2, %q1, -1;") == shared);
  CHECK(reports_of("redux.sync.add.u32 %r2, %r1, -1;") == shared);
  CHECK(reports_of("bar.warp.sync %r1;") == "member-mask " + shared + "error 719");
  CHECK(reports_of("ld.global.u32 %r2, [%rd9];") == clean);
  CHECK(reports_of("ld.global.u32 %r2, [%rd9]; st.global.u32 [%rd10], %r2;") == global);
  CHECK(reports_of("ld.global.u32 %r2, [%rd9]; add.u32 %r2, %r1, %r2; st.global.u32 [%rd10], %r2;") ==
        shared);
  // Used and reported once, a value counts as defined.
  CHECK(
      reports_of("mov.u32 %r5, 0; again: setp.eq.u32 %q1, %r1, 0; @%q1 bra next; next: add.u32 %r5, %r5, 1; "
                 "setp.lt.u32 %q2, %r5, 100; @%q2 bra again;") == shared);
}

TEST_CASE("undefined values in shared, local and parameter memory") {
  const std::string never_written_local = "uninitialised-local ";
  const std::string use = "setp.eq.u32 %q1, %r2, 0; @%q1 bra end; end:";
  CHECK(reports_of("st.shared.u32 [%r9+4], %r1;") == clean);
  CHECK(reports_of("st.shared.u32 [%r9+4], %r1; ld.shared.u32 %r2, [%r9+4];" + use) == shared);
  CHECK(reports_of("st.shared.u32 [%r9+4], %r1; st.shared.u32 [%r9+4], 1; ld.shared.u32 %r2, [%r9+4];" +
                   use) == clean);
  const std::string local = ".local .align 8 .b8 l[16]; mov.u64 %rd1, l;";
  CHECK(reports_of(local + "st.local.u32 [%rd1], %r1; ld.local.u32 %r2, [%rd1];" + use) == shared);
  CHECK(reports_of(local + "st.local.u32 [%rd1], %r1; st.local.u32 [%rd1], 1; ld.local.u32 %r2, [%rd1];" +
                   use) == clean);
  CHECK(reports_of(local + "st.local.v2.u32 [%rd1], {%r1, %r0}; ld.local.u32 %r2, [%rd1+4];" + use) == clean);
  CHECK(reports_of(local + "cvta.local.u64 %rd2, %rd1; st.u32 [%rd2], %r1; ld.local.u32 %r2, [%rd1];" +
                   use) == shared);

  const std::string functions =
      ".func (.param .b32 result) first(.param .b32 a, .param .b32 b)\n{ .reg .b32 %x; .local .b32 kept; "
      "ld.param.b32 %x, [a]; st.local.b32 [kept], %x; ld.param.b32 %x, [b]; ld.local.b32 %x, [kept]; "
      "st.param.b32 [result], %x; ret; }\n"
      ".func (.param .b32 result) constant()\n{ .reg .b32 %x; .local .b32 kept; ld.local.b32 %x, [kept]; "
      "and.b32 "
      "%x, %x, 0; ld.local.b32 %x, [kept]; st.param.b32 [result], %x; ret; }\n";
  const auto call = [](const std::string& a, const std::string& b) {
    return "{ .param .b32 pa; .param .b32 pb; .param .b32 pr; st.param.b32 [pa], " + a +
           "; st.param.b32 [pb], " + b + "; call (pr), first, (pa, pb); ld.param.b32 %r2, [pr]; }";
  };
  CHECK(reports_of(call("%r1", "%r0") + use, functions) == shared);
  CHECK(reports_of(call("%r0", "%r1") + use, functions) == clean);
  // The next function's variables lie where those of the last one were.
  CHECK(reports_of(
            call("%r1", "%r0") + "{ .param .b32 pr; call (pr), constant, (); ld.param.b32 %r2, [pr]; }" + use,
            functions) == never_written_local);

  // Local memory that nobody has written
  CHECK(reports_of(local + "ld.local.u32 %r2, [%rd1];") == clean);
  CHECK(reports_of(local + "ld.local.u32 %r2, [%rd1];" + use) == never_written_local);
  CHECK(reports_of(local + "st.local.u32 [%rd1+4], 1; ld.local.u32 %r2, [%rd1];" + use) ==
        never_written_local);
  CHECK(reports_of(local + "st.local.u32 [%rd1], 1; ld.local.u32 %r2, [%rd1];" + use) == clean);
  CHECK(reports_of(local + "st.local.u16 [%rd1], 1; ld.local.u32 %r2, [%rd1]; and.b32 %r2, %r2, 0xffff;" +
                   use) == clean);
  // The bits that are defined do not settle the comparison.
  CHECK(reports_of(local + "st.local.u16 [%rd1], 0; ld.local.u32 %r2, [%rd1]; and.b32 %r2, %r2, 0x1ffff;" +
                   use) == never_written_local);
}

TEST_CASE("shuffles carry undefined bits from lane to lane") {
  // Lane 5 alone holds an undefined value.
  const std::string one = "mov.u32 %r2, 1; setp.eq.u32 %q1, %r0, 5; @%q1 mov.u32 %r2, %r1;";
  const std::string shuffle = one + "shfl.sync.down.b32 %r2, %r2, 1, 31, -1;";
  const auto use = [](int lane) {
    return "setp.ne.u32 %q1, %r0, " + std::to_string(lane) +
           "; @%q1 bra end; setp.eq.u32 %q2, %r2, 0; @%q2 bra end; end:";
  };
  CHECK(reports_of(shuffle) == clean);
  CHECK(reports_of(shuffle + use(4)) == shared);
  CHECK(reports_of(shuffle + use(5)) == clean);
  CHECK(reports_of(one + "shfl.sync.idx.b32 %r2, 3, %r2, 31, -1;") == shared);
}

TEST_CASE("padding of structs is copied, values are not") {
  // 16 bytes of which 4 are written.
  const std::string some = "st.global.u32 [%rd9], 1;";
  CHECK(reports_of(some +
                   "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd9]; st.global.v4.u32 [%rd10], {%r2, %r3, %r4, "
                   "%r5};") == clean);
  CHECK(reports_of(some + "ld.global.u32 %r3, [%rd9+4]; st.global.u32 [%rd10], %r3;") == global);
  CHECK(reports_of(
            some +
            ".pragma \"used_bytes_mask 0\";\nld.global.u32 %r3, [%rd9+4]; st.global.u32 [%rd10], %r3;") ==
        clean);
  CHECK(reports_of(
            some +
            "ld.global.v2.u32 {%r2, %r3}, [%rd9]; st.global.u32 [%rd10], %r3; ld.global.u32 %r4, [%rd10]; "
            "setp.eq.u32 %q1, %r4, 0; @%q1 bra end; end:") == global);
  CHECK(reports_of(some + "ld.global.u32 %r3, [%rd9+4]; add.u32 %r3, %r3, 1; st.global.u32 [%rd10], %r3;") ==
        global);
  CHECK(
      reports_of(
          "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd9]; st.global.v4.u32 [%rd10], {%r2, %r3, %r4, %r5};") ==
      global);
  // The same by cp.async through shared memory.
  const std::string through = "cp.async.ca.shared.global [%r9], [%rd9], 16; cp.async.wait_all;";
  CHECK(reports_of(some + through + "ld.shared.u32 %r2, [%r9]; st.global.u32 [%rd10], %r2;") == clean);
  CHECK(reports_of(some + through +
                   "ld.shared.u32 %r2, [%r9+4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd10], %r2;") == shared);
}

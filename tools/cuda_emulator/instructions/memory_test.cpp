#include <doctest/doctest.h>

#include <numeric>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

LaunchShape threads(std::uint32_t count, std::uint32_t blocks = 1, std::uint32_t dynamic_shared = 0) {
  LaunchShape shape;
  shape.grid = {blocks, 1, 1};
  shape.block = {count, 1, 1};
  shape.dynamic_shared = dynamic_shared;
  return shape;
}

/// Runs a kernel with the addresses of the buffers as arguments and returns its error.
int run_text(const std::string& body, std::initializer_list<const Buffer*> buffers, const LaunchShape& shape,
             const std::string& declarations = "") {
  take_reports();
  Module module({kernel_text(static_cast<int>(buffers.size()), body, declarations)}, 0);
  Arguments arguments;
  for (const Buffer* buffer : buffers) arguments.add(buffer->address());
  return run(module, shape, arguments);
}

using Kinds = std::vector<std::string>;

}  // namespace

TEST_CASE("ld fills wide registers by the sign of its type") {
  Buffer in(256), out(32 * 8 * 6);
  std::vector<std::uint8_t> bytes(256);
  for (std::size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<std::uint8_t>(k * 37 + 129);
  in.write(bytes.data(), bytes.size());
  REQUIRE(run_text(R"(
      mul.lo.u64 %rd1, %t64, 4; add.u64 %rd1, %p0, %rd1;
      mul.lo.u64 %rd2, %t64, 48; add.u64 %rd2, %p1, %rd2;
      ld.global.s8 %h1, [%rd1];   cvt.s64.s16 %rd3, %h1; st.global.u64 [%rd2], %rd3;
      ld.global.u8 %r1, [%rd1+1]; cvt.u64.u32 %rd3, %r1; st.global.u64 [%rd2+8], %rd3;
      ld.global.s16 %rd3, [%rd1+2]; st.global.b64 [%rd2+16], %rd3;
      ld.global.b16 %r1, [%rd1+2]; cvt.s64.s32 %rd3, %r1; st.global.u64 [%rd2+24], %rd3;
      ld.global.s32 %rd3, [%rd1]; st.global.u64 [%rd2+32], %rd3;
      ld.global.u32 %rd3, [%rd1+0]; st.global.u64 [%rd2+40], %rd3;)",
                   {&in, &out}, threads(32)) == 0);
  const auto results = out.values<std::int64_t>(32 * 6);
  for (std::size_t l = 0; l < 32; ++l) {
    std::int16_t half;
    std::int32_t word;
    std::memcpy(&half, &bytes[l * 4 + 2], 2);
    std::memcpy(&word, &bytes[l * 4], 4);
    CHECK(results[l * 6] == static_cast<std::int8_t>(bytes[l * 4]));
    CHECK(results[l * 6 + 1] == bytes[l * 4 + 1]);
    CHECK(results[l * 6 + 2] == half);
    CHECK(results[l * 6 + 3] == static_cast<std::uint16_t>(half));
    CHECK(results[l * 6 + 4] == word);
    CHECK(results[l * 6 + 5] == static_cast<std::uint32_t>(word));
  }
  CHECK(take_reports().empty());
}

TEST_CASE("vectors of every width move by lanes, and st takes the low bits") {
  Buffer in(32 * 32), out(32 * 64);
  std::vector<std::uint32_t> words(32 * 8);
  std::iota(words.begin(), words.end(), 0x8182'8384u);
  in.write(words.data(), words.size() * 4);
  REQUIRE(run_text(R"(
      mul.lo.u64 %rd1, %t64, 32; add.u64 %rd1, %p0, %rd1;
      mul.lo.u64 %rd2, %t64, 64; add.u64 %rd2, %p1, %rd2;
      ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; st.global.v4.u32 [%rd2], {%r4, %r3, %r2, %r1};
      ld.global.nc.L1::no_allocate.L2::128B.v2.u64 {%rd3, %rd4}, [%rd1+16]; st.global.v2.u64 [%rd2+16], {%rd4, %rd3};
      ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%rd1]; st.global.v4.u8 [%rd2+32], {%h4, %h3, %h2, %h1};
      ld.global.v4.s16 {%r5, %r6, %r7, %r8}, [%rd1]; st.global.v4.b32 [%rd2+48], {%r5, %r6, %r7, %r8};
      ld.global.u64 %rd5, [%rd1]; st.global.u8 [%rd2+36], %rd5; st.global.u16 [%rd2+38], %r1; st.global.u64 [%rd2+40], 1;)",
                   {&in, &out}, threads(32)) == 0);
  const auto results = out.values<std::uint8_t>(32 * 64);
  for (std::size_t l = 0; l < 32; ++l) {
    const std::uint32_t* w = &words[l * 8];
    std::array<std::uint32_t, 16> got;
    std::memcpy(got.data(), &results[l * 64], 64);
    CHECK(got[0] == w[3]);
    CHECK(got[3] == w[0]);
    CHECK(got[4] == w[6]);
    CHECK(got[6] == w[4]);
    CHECK(got[8] == __builtin_bswap32(w[0]));
    CHECK((got[9] & 255) == (w[0] & 255));
    CHECK((got[9] >> 16) == (w[0] & 0xffff));
    CHECK(got[10] == 1);
    CHECK(got[12] == static_cast<std::uint32_t>(static_cast<std::int16_t>(w[0])));
    CHECK(got[15] == static_cast<std::uint32_t>(static_cast<std::int16_t>(w[1] >> 16)));
  }
}

TEST_CASE("generic addresses reach the window of each lane") {
  // Lanes by thread % 3: global, shared, local memory.
  Buffer out(32 * 4), scratch(32 * 4);
  REQUIRE(run_text(R"(
      .shared .align 4 .b8 s[128];
      .local .align 4 .b8 l[4];
      rem.u32 %r1, %t, 3; mul.lo.u64 %rd9, %t64, 4;
      add.u64 %rd1, %p1, %rd9;
      mov.u64 %rd2, s; cvta.shared.u64 %rd2, %rd2; add.u64 %rd2, %rd2, %rd9;
      mov.u64 %rd3, l; cvta.local.u64 %rd3, %rd3;
      setp.eq.u32 %q1, %r1, 1; selp.b64 %rd4, %rd2, %rd1, %q1;
      setp.eq.u32 %q2, %r1, 2; selp.b64 %rd4, %rd3, %rd4, %q2;
      add.u32 %r2, %t, 1000;
      st.u32 [%rd4], %r2;
      ld.u32 %r3, [%rd4];
      mov.u32 %r4, 0;
      @%q1 ld.shared.u32 %r4, [%rd2+0];
      add.u64 %rd5, %p0, %rd9; st.global.u32 [%rd5], %r3;)",
                   {&out, &scratch}, threads(32)) == 717);  // a generic address where a shared offset belongs
  CHECK(take_reports() == Kinds{"wrong-window"});
  REQUIRE(run_text(R"(
      .shared .align 4 .b8 s[128];
      .local .align 4 .b8 l[4];
      rem.u32 %r1, %t, 3; mul.lo.u64 %rd9, %t64, 4;
      add.u64 %rd1, %p1, %rd9;
      mov.u64 %rd2, s; add.u64 %rd6, %rd2, %rd9; cvta.shared.u64 %rd2, %rd6;
      mov.u64 %rd3, l; cvta.local.u64 %rd7, %rd3;
      setp.eq.u32 %q1, %r1, 1; selp.b64 %rd4, %rd2, %rd1, %q1;
      setp.eq.u32 %q2, %r1, 2; selp.b64 %rd4, %rd7, %rd4, %q2;
      add.u32 %r2, %t, 1000;
      st.u32 [%rd4], %r2;
      ld.global.u32 %r3, [%rd1];
      @%q1 ld.shared.u32 %r3, [%rd6];
      @%q2 ld.local.u32 %r3, [%rd3];
      ld.u32 %r4, [%rd4]; sub.u32 %r4, %r4, %r2; add.u32 %r3, %r3, %r4;
      add.u64 %rd5, %p0, %rd9; st.global.u32 [%rd5], %r3;)",
                   {&out, &scratch}, threads(32)) == 0);
  const auto results = out.values<std::uint32_t>(32), left = scratch.values<std::uint32_t>(32);
  for (std::uint32_t l = 0; l < 32; ++l) {
    if (l % 3 == 0) CHECK(left[l] == 1000 + l);
    CHECK(results[l] == 1000 + l);
  }
}

TEST_CASE("an access past the end ends the kernel and names the thread and the allocation") {
  Buffer buffer(64);
  const auto error_at = [&](const std::string& statement, std::uint32_t count = 32) {
    return run_text(
        "mul.lo.u64 %rd1, %t64, 4; add.u64 %rd1, %p0, %rd1; mov.u32 %r1, 1; mov.u64 %rd2, 1;" + statement,
        {&buffer}, threads(count));
  };
  CHECK(error_at("st.global.u32 [%rd1], %r1;", 16) == 0);
  CHECK(take_reports().empty());
  CHECK(error_at("st.global.u32 [%rd1], %r1;", 17) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(error_at("ld.global.u32 %r2, [%rd1+-4];", 1) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(error_at("atom.global.add.u32 %r2, [%rd1+64], 1;", 1) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(error_at("st.u32 [%rd1+64], %r1;", 1) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(error_at("ld.global.u32 %r2, [0];", 1) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
}

TEST_CASE("misaligned accesses are error 716") {
  Buffer buffer(256);
  const auto error_at = [&](const std::string& statement) {
    return run_text("mov.u32 %r1, 1; mov.u64 %rd2, 1;" + statement, {&buffer}, threads(1));
  };
  CHECK(error_at("st.global.u32 [%p0+2], %r1;") == 716);
  CHECK(take_reports() == Kinds{"misaligned"});
  CHECK(error_at("st.global.v4.u32 [%p0+8], {%r1, %r1, %r1, %r1};") == 716);
  CHECK(take_reports() == Kinds{"misaligned"});
  CHECK(error_at("st.global.v2.u32 [%p0+8], {%r1, %r1};") == 0);
  CHECK(error_at("atom.global.add.u64 %rd3, [%p0+4], %rd2;") == 716);
  CHECK(take_reports() == Kinds{"misaligned"});
}

TEST_CASE("memory that was freed may not be touched") {
  std::uint64_t address;
  {
    Buffer gone(64);
    address = gone.address();
  }
  Module module({kernel_text(1, "ld.global.u32 %r1, [%p0];")}, 0);
  take_reports();
  CHECK(run(module, threads(1), Arguments().add(address)) == 700);
  CHECK(take_reports() == Kinds{"use-after-free"});
}

TEST_CASE("bounds of shared, local and parameter memory") {
  Buffer buffer(64);
  const std::string shared =
      ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; mul.lo.u32 %r2, %t, 4; add.u32 %r1, %r1, %r2; mov.u32 "
      "%r3, 1;";
  CHECK(run_text(shared + "st.shared.u32 [%r1], %r3;", {&buffer}, threads(16)) == 0);
  CHECK(run_text(shared + "st.shared.u32 [%r1], %r3;", {&buffer}, threads(17)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(run_text(shared + "st.shared.u32 [%r1+-4], %r3;", {&buffer}, threads(1)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  // Dynamic shared memory begins behind a gap of 128 bytes.
  CHECK(run_text(shared + "st.shared.u32 [%r1+64], %r3;", {&buffer}, threads(1, 1, 16)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(run_text(shared + "st.shared.u32 [%r1+188], %r3;", {&buffer}, threads(1, 1, 16)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  CHECK(run_text(shared + "st.shared.u32 [%r1+192], %r3;", {&buffer}, threads(4, 1, 16)) == 0);
  CHECK(run_text(shared + "st.shared.u32 [%r1+192], %r3;", {&buffer}, threads(5, 1, 16)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
  const std::string local = ".local .align 16 .b8 l[64]; mov.u64 %rd1, l; mov.u32 %r3, 1;";
  CHECK(run_text(local + "st.local.u32 [%rd1+60], %r3;", {&buffer}, threads(32)) == 0);
  CHECK(run_text(local + "st.local.u32 [%rd1+64], %r3;", {&buffer}, threads(32)) == 700);
  CHECK(take_reports() == Kinds{"out-of-bounds"});
}

TEST_CASE("kernel parameters by address, and no stores to them") {
  Buffer buffer(64);
  CHECK(
      run_text("mov.b64 %rd1, p0; cvta.param.u64 %rd2, %rd1; ld.param.u64 %rd3, [%rd1]; ld.u64 %rd4, [%rd2];"
               "sub.u64 %rd3, %rd3, %p0; st.global.u64 [%p0], %rd3; sub.u64 %rd4, %rd4, %p0; st.global.u64 "
               "[%p0+8], %rd4;",
               {&buffer}, threads(1)) == 0);
  CHECK(buffer.values<std::uint64_t>(2) == std::vector<std::uint64_t>{0, 0});
  CHECK(run_text("mov.b64 %rd1, p0; cvta.param.u64 %rd2, %rd1; st.u64 [%rd2], %rd1;", {&buffer},
                 threads(1)) == 700);
  CHECK(take_reports() == Kinds{"read-only"});
}

TEST_CASE("a thread that spins on a flag lets the others go first") {
  // Lane 0 waits for lane 31, block 0 for block 1, whatever their order.
  Buffer flags(8);
  const std::uint64_t zero = 0;
  flags.write(&zero, 8);
  CHECK(run_text(R"(
      mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;
      setp.eq.u32 %q1, %r1, 1; setp.eq.u32 %q2, %r2, 31; setp.eq.u32 %q3, %r2, 0;
      @%q1 bra second;
      @!%q3 bra done;
    wait: ld.volatile.global.u32 %r3, [%p0]; setp.eq.u32 %q4, %r3, 0; @%q4 bra wait;
      st.volatile.global.u32 [%p0+4], 7; bra done;
    second:
      @%q2 bra set;
      @!%q3 bra done;
    inner: ld.relaxed.gpu.global.u32 %r3, [%p0]; setp.eq.u32 %q4, %r3, 0; @%q4 bra inner;
      bra done;
    set: st.volatile.global.u32 [%p0], 1;
    done:)",
                 {&flags}, threads(32, 2)) == 0);
  CHECK(flags.values<std::uint32_t>(2) == std::vector<std::uint32_t>{1, 7});
}

TEST_CASE("a discarded line counts as never written") {
  Buffer buffer(256), out(128);
  const std::string discard =
      "applypriority.global.L2::evict_normal [%p0], 128; discard.global.L2 [%p0], 128;";
  CHECK(run_text("st.global.u32 [%p0+128], 5;" + discard +
                     "ld.global.u32 %r0, [%p0+128]; st.global.u32 [%p1], %r0;",
                 {&buffer, &out}, threads(1)) == 0);
  CHECK(take_reports().empty());
  CHECK(run_text("st.global.u32 [%p0], 5;" + discard + "ld.global.u32 %r0, [%p0]; st.global.u32 [%p1], %r0;",
                 {&buffer, &out}, threads(1)) == 0);
  CHECK(take_reports().size() == 1);
}

TEST_CASE("prefetches change nothing") {
  Buffer buffer(64);
  CHECK(run_text("prefetch.global.L2 [%p0]; prefetch.L1 [%p0+4096]; prefetchu.L1 [%p0];", {&buffer},
                 threads(32)) == 0);
  CHECK(take_reports().empty());
}

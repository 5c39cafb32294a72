#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "instructions/half.h"
#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

int run_text(const std::string& body, std::initializer_list<const Buffer*> buffers, std::uint32_t threads,
             std::uint32_t blocks = 1) {
  take_reports();
  Module module({kernel_text(static_cast<int>(buffers.size()), body)}, 0);
  Arguments arguments;
  for (const Buffer* buffer : buffers) arguments.add(buffer->address());
  LaunchShape shape;
  shape.grid = {blocks, 1, 1};
  shape.block = {threads, 1, 1};
  return run(module, shape, arguments);
}

/// Runs atom.SPACE.OP.TYPE on one value per thread of a warp and checks old and new values against `expected(a, b)`.
template <class T, class F>
void check_operation(const std::string& operation, const std::string& space, const std::vector<T>& places,
                     const std::vector<T>& operands, F expected) {
  REQUIRE(places.size() == operands.size());
  const auto count = static_cast<std::uint32_t>(places.size());
  Buffer at(count * sizeof(T)), with(count * sizeof(T)), old(count * sizeof(T));
  at.write(places.data(), count * sizeof(T));
  with.write(operands.data(), count * sizeof(T));
  const std::string bits = "b" + std::to_string(8 * sizeof(T));
  const std::string a = sizeof(T) == 8   ? "%rd5"
                        : sizeof(T) == 4 ? "%r5"
                                         : "%h5",
                    b = sizeof(T) == 8   ? "%rd6"
                        : sizeof(T) == 4 ? "%r6"
                                         : "%h6";
  std::string body = ".shared .align 16 .b8 s[8192];mul.lo.u64 %rd9, %t64, " + std::to_string(sizeof(T)) +
                     ";add.u64 %rd1, %p0, %rd9;add.u64 %rd2, %p1, %rd9;add.u64 %rd3, %p2, %rd9;"
                     "ld.global." +
                     bits + " " + b + ", [%rd2];";
  if (space == "shared")
    body += "mov.u64 %rd4, s; add.u64 %rd4, %rd4, %rd9; ld.global." + bits + " " + a +
            ", [%rd1]; st.shared." + bits + " [%rd4], " + a +
            ";"
            "atom.shared." +
            operation + " " + a + ", [%rd4], " + b + "; st.global." + bits + " [%rd3], " + a +
            ";"
            "ld.shared." +
            bits + " " + a + ", [%rd4]; st.global." + bits + " [%rd1], " + a + ";";
  else
    body += "atom" + space + "." + operation + " " + a + ", [%rd1], " + b + "; st.global." + bits +
            " [%rd3], " + a + ";";
  REQUIRE(run_text(body, {&at, &with, &old}, count) == 0);
  const auto now = at.values<T>(count), before = old.values<T>(count);
  for (std::size_t k = 0; k < count; ++k) {
    CAPTURE(operation);
    CAPTURE(space);
    CAPTURE(places[k]);
    CAPTURE(operands[k]);
    CHECK(before[k] == places[k]);
    CHECK(now[k] == expected(places[k], operands[k]));
  }
}

template <class T>
std::pair<std::vector<T>, std::vector<T>> pairs(std::vector<T> values) {
  std::pair<std::vector<T>, std::vector<T>> all;
  for (const T a : values)
    for (const T b : values) {
      all.first.push_back(a);
      all.second.push_back(b);
    }
  return all;
}

template <class F>
void for_spaces(F f) {
  for (const char* space : {".global", "", "shared"}) f(std::string(space));
}

}  // namespace

TEST_CASE("integer atomics on 32 bits") {
  const auto [a, b] = pairs<std::uint32_t>({0, 1, 5, 0x7fff'ffff, 0x8000'0000, 0xffff'ffff});
  for_spaces([&, &a = a, &b = b](const std::string& space) {
    using u = std::uint32_t;
    using s = std::int32_t;
    check_operation<u>("add.u32", space, a, b, [](u x, u y) { return x + y; });
    check_operation<u>("add.s32", space, a, b, [](u x, u y) { return x + y; });
    check_operation<u>("and.b32", space, a, b, [](u x, u y) { return x & y; });
    check_operation<u>("or.b32", space, a, b, [](u x, u y) { return x | y; });
    check_operation<u>("xor.b32", space, a, b, [](u x, u y) { return x ^ y; });
    check_operation<u>("exch.b32", space, a, b, [](u, u y) { return y; });
    check_operation<u>("min.u32", space, a, b, [](u x, u y) { return x < y ? x : y; });
    check_operation<u>("max.u32", space, a, b, [](u x, u y) { return x < y ? y : x; });
    check_operation<u>("min.s32", space, a, b,
                       [](u x, u y) { return static_cast<s>(x) < static_cast<s>(y) ? x : y; });
    check_operation<u>("max.s32", space, a, b,
                       [](u x, u y) { return static_cast<s>(x) < static_cast<s>(y) ? y : x; });
    check_operation<u>("inc.u32", space, a, b, [](u x, u y) { return x >= y ? 0 : x + 1; });
    check_operation<u>("dec.u32", space, a, b, [](u x, u y) { return x == 0 || x > y ? y : x - 1; });
  });
}

TEST_CASE("integer atomics on 64 bits") {
  const auto [a, b] = pairs<std::uint64_t>({0, 1, 0xffff'ffff, ~0ull >> 1, 1ull << 63, ~0ull});
  for_spaces([&, &a = a, &b = b](const std::string& space) {
    using u = std::uint64_t;
    using s = std::int64_t;
    check_operation<u>("add.u64", space, a, b, [](u x, u y) { return x + y; });
    check_operation<u>("relaxed.sys.and.b64", space, a, b, [](u x, u y) { return x & y; });
    check_operation<u>("or.b64", space, a, b, [](u x, u y) { return x | y; });
    check_operation<u>("xor.b64", space, a, b, [](u x, u y) { return x ^ y; });
    check_operation<u>("exch.b64", space, a, b, [](u, u y) { return y; });
    check_operation<u>("min.u64", space, a, b, [](u x, u y) { return std::min(x, y); });
    check_operation<u>("max.s64", space, a, b, [](u x, u y) {
      return static_cast<u>(std::max(static_cast<s>(x), static_cast<s>(y)));
    });
    check_operation<u>("min.s64", space, a, b, [](u x, u y) {
      return static_cast<u>(std::min(static_cast<s>(x), static_cast<s>(y)));
    });
  });
}

TEST_CASE("add.f32 flushes subnormals in global memory, not in shared memory") {
  std::vector<std::uint32_t> values;
  for (const float x :
       {0.0f, -0.0f, 1.0f, -1.5f, 1e-40f, -1e-40f, 1.2e-38f, -1.1754944e-38f, 3e38f, INFINITY, -INFINITY})
    values.push_back(std::bit_cast<std::uint32_t>(x));
  values.push_back(0x7fc0'0001);
  const auto [a, b] = pairs(values);
  for_spaces([&, &a = a, &b = b](const std::string& space) {
    check_operation<std::uint32_t>("add.f32", space, a, b, [&](std::uint32_t p, std::uint32_t q) {
      const auto flush = [&](float x) {
        return space != "shared" && std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
      };
      const float sum = flush(flush(std::bit_cast<float>(p)) + flush(std::bit_cast<float>(q)));
      return std::isnan(sum) ? 0x7fff'ffffu : std::bit_cast<std::uint32_t>(sum);
    });
    const auto [c, d] =
        pairs<std::uint64_t>({std::bit_cast<std::uint64_t>(1e-310), std::bit_cast<std::uint64_t>(2.5),
                              std::bit_cast<std::uint64_t>(-1e300)});
    check_operation<std::uint64_t>("add.f64", space, c, d, [](std::uint64_t p, std::uint64_t q) {
      return std::bit_cast<std::uint64_t>(std::bit_cast<double>(p) + std::bit_cast<double>(q));
    });
  });
}

TEST_CASE("16-bit floating atomics") {
  const auto [a, b] =
      pairs<std::uint16_t>({0, 0x8000, 0x0001, 0x3c00, 0xbc01, 0x7bff, 0x7c00, 0x3555, 0x7e00, 0x4248});
  for_spaces([&, &a = a, &b = b](const std::string& space) {
    check_operation<std::uint16_t>("add.noftz.f16", space, a, b, [](std::uint16_t x, std::uint16_t y) {
      return double_to_half(static_cast<double>(half_to_float(x)) + half_to_float(y));
    });
    check_operation<std::uint16_t>("add.noftz.bf16", space, a, b, [](std::uint16_t x, std::uint16_t y) {
      return double_to_bfloat(static_cast<double>(bfloat_to_float(x)) + bfloat_to_float(y));
    });
  });
  std::vector<std::uint32_t> c, d;
  for (std::size_t k = 0; k < a.size(); ++k) {
    c.push_back(a[k] | std::uint32_t{b[a.size() - 1 - k]} << 16);
    d.push_back(b[k] | std::uint32_t{a[a.size() - 1 - k]} << 16);
  }
  for_spaces([&](const std::string& space) {
    check_operation<std::uint32_t>("add.noftz.f16x2", space, c, d, [](std::uint32_t x, std::uint32_t y) {
      const auto half = [&](int shift) {
        return double_to_half(static_cast<double>(half_to_float(static_cast<std::uint16_t>(x >> shift))) +
                              half_to_float(static_cast<std::uint16_t>(y >> shift)));
      };
      return half(0) | std::uint32_t{half(16)} << 16;
    });
  });
}

TEST_CASE("compare and swap of 16, 32, 64 and 128 bits") {
  Buffer at(64), old(64);
  const std::array<std::uint64_t, 4> start{0x1111'2222'3333'4444, 5, 6, 7};
  at.write(start.data(), 32);
  REQUIRE(run_text(R"(
      .reg .b128 %x<4>;
      mov.b16 %h1, 0x4444; mov.b16 %h2, 0x9999; atom.global.cas.b16 %h3, [%p0], %h1, %h2; st.global.b16 [%p1], %h3;
      atom.global.acq_rel.gpu.cas.b16 %h3, [%p0], %h1, %h2; st.global.b16 [%p1+2], %h3;
      atom.cas.b32 %r1, [%p0+4], 0x11112222, 77; st.global.b32 [%p1+4], %r1;
      atom.global.cas.b64 %rd1, [%p0+8], 5, 50; st.global.b64 [%p1+8], %rd1;
      mov.u64 %rd2, 6; mov.u64 %rd3, 7; mov.b128 %x0, {%rd2, %rd3}; mov.b128 %x1, {%rd3, %rd2};
      atom.global.cas.b128 %x2, [%p0+16], %x0, %x1; mov.b128 {%rd4, %rd5}, %x2; st.global.v2.b64 [%p1+16], {%rd4, %rd5};
      atom.global.exch.b128 %x2, [%p0+16], %x0; mov.b128 {%rd4, %rd5}, %x2; st.global.v2.b64 [%p1+32], {%rd4, %rd5};
      atom.global.cas.b128 %x2, [%p0+16], %x1, %x1; mov.b128 {%rd4, %rd5}, %x2; st.global.v2.b64 [%p1+48], {%rd4, %rd5};)",
                   {&at, &old}, 1) == 0);
  CHECK(at.values<std::uint64_t>(4) == std::vector<std::uint64_t>{0x0000'004d'3333'9999, 50, 6, 7});
  const auto before = old.values<std::uint64_t>(8);
  CHECK(before == std::vector<std::uint64_t>{0x1111'2222'9999'4444, 5, 6, 7, 7, 6, 6, 7});
}

TEST_CASE("vector atomics change each element") {
  Buffer at(64), old(64);
  const std::array<float, 4> floats{1, 2, 3, 4};
  const std::array<std::uint16_t, 8> halves{0x3c00, 0x4000, 0x4200, 0x4400, 0x3c00, 0x4000, 0x4200, 0x4400};
  at.write(floats.data(), 16);
  at.write(halves.data(), 16, 16);
  REQUIRE(run_text(R"(
      mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f40400000; mov.f32 %f4, 0f40800000;
      atom.global.v4.f32.add {%f1, %f2, %f3, %f4}, [%p0], {%f4, %f3, %f2, %f1};
      st.global.v4.f32 [%p1], {%f1, %f2, %f3, %f4};
      red.global.v2.f32.add [%p0+8], {%f1, %f1};
      mov.u32 %r1, 0x3c003c00;
      atom.global.add.noftz.v2.f16x2 {%r2, %r3}, [%p0+16], {%r1, %r1};
      st.global.v2.b32 [%p1+16], {%r2, %r3};
      mov.b16 %h1, 0x4100;
      red.global.max.noftz.v4.f16 [%p0+24], {%h1, %h1, %h1, %h1};)",
                   {&at, &old}, 1) == 0);
  CHECK(at.values<float>(4) == std::vector<float>{5, 5, 6, 6});
  CHECK(old.values<float>(4) == std::vector<float>{1, 2, 3, 4});
  std::vector<std::uint16_t> now(8);
  at.read(now.data(), 16, 16);
  CHECK(now == std::vector<std::uint16_t>{0x4000, 0x4200, 0x4400, 0x4500, 0x4100, 0x4100, 0x4200, 0x4400});
}

TEST_CASE("atomics of many blocks on one place lose nothing") {
  Buffer counter(64), seen(64 * 256 * 4);
  const std::array<std::uint32_t, 16> zeros{};
  counter.write(zeros.data(), 64);
  REQUIRE(run_text(R"(
      atom.global.add.u32 %r1, [%p0], 1; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %p1, %rd1; st.global.u32 [%rd1], %t;
      red.global.add.f32 [%p0+4], 0f3F800000; red.global.inc.u32 [%p0+8], 99; red.global.max.u32 [%p0+12], %t;
      red.global.add.noftz.bf16 [%p0+16], %h1;)",
                   {&counter, &seen}, 256, 64) == 0);
  const auto totals = counter.values<std::uint32_t>(4);
  CHECK(totals[0] == 64 * 256);
  CHECK(std::bit_cast<float>(totals[1]) == 64 * 256);
  CHECK(totals[2] == 64 * 256 % 100);
  CHECK(totals[3] == 64 * 256 - 1);
  auto order = seen.values<std::uint32_t>(64 * 256);
  std::sort(order.begin(), order.end());
  std::vector<std::uint32_t> all(64 * 256);
  std::iota(all.begin(), all.end(), 0u);
  CHECK(order == all);
}

TEST_CASE("atomics of other spaces and types are unknown or errors") {
  Buffer at(64);
  CHECK(run_text(".local .align 8 .b8 l[8]; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1; atom.add.u32 %r1, "
                 "[%rd1], 1;",
                 {&at}, 1) == 717);
  CHECK(run_text("atom.global.add.f16 %h1, [%p0], %h2;", {&at}, 1) == 715);
  CHECK(run_text("atom.global.inc.s32 %r1, [%p0], 1;", {&at}, 1) == 715);
  take_reports();
}

TEST_CASE("an exchange may begin a place when nobody uses the old value") {
  const std::string place = ".shared .align 4 .b32 s;";
  for (const std::string at : {"[%p0]", "[s]"}) {
    const std::string space = at == "[s]" ? "shared" : "global";
    const std::string exchange = place + "atom." + space + ".exch.b32 %r1, " + at + ", 7;";
    Buffer never_written(4), out(4);
    CHECK(run_text(exchange + "ld." + space + ".u32 %r2, " + at + "; st.global.u32 [%p1], %r2;",
                   {&never_written, &out}, 1) == 0);
    CHECK(take_reports().empty());
    CHECK(out.values<std::uint32_t>(1)[0] == 7);
    Buffer another(4);
    CHECK(run_text(exchange + "st.global.u32 [%p1], %r1;", {&another, &out}, 1) == 0);
    CHECK(take_reports() == std::vector<std::string>{"uninitialised-" + space});
    Buffer third(4);
    CHECK(run_text(place + "atom." + space + ".add.u32 %r1, " + at + ", 7;", {&third, &out}, 1) == 0);
    CHECK(take_reports() == std::vector<std::string>{"uninitialised-" + space});
  }
}

TEST_CASE("fences of all kinds execute") {
  Buffer at(64);
  CHECK(run_text("membar.cta; membar.gl; membar.sys; fence.sc.gpu; fence.acq_rel.cta; fence.acq_rel.sys; "
                 "fence.acquire.gpu;"
                 "fence.proxy.async; fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster;"
                 "fence.proxy.tensormap::generic.release.gpu;",
                 {&at}, 32) == 0);
  CHECK(take_reports().empty());
}

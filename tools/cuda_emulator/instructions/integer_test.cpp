#include <cstdlib>

#include "tests/lanewise.h"

using namespace emulator::test;

// Expected results come from arithmetic in 128 bits, which no sum or product of 64-bit operands leaves.
namespace {

using wide = __int128;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <class T>
std::string type_name() {
  return (std::is_signed_v<T> ? "s" : "u") + std::to_string(8 * sizeof(T));
}

/// The type of an integer with twice the bytes.
template <class T>
using Double = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, s32, u32>,
                                  std::conditional_t<std::is_signed_v<T>, s64, u64>>;

/// Bits `from` and up of a product, as 256 bits would be needed for unsigned 64-bit factors: exact for
/// every T by 64-bit halves.
template <class T>
T high_half(T a, T b) {
  if constexpr (sizeof(T) < 8) {
    return static_cast<T>(wide{a} * b >> (8 * sizeof(T)));
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(wide{a} * b >> 64);
  } else {
    const u64 low = (a & 0xffffffff) * (b & 0xffffffff), middle = (a >> 32) * (b & 0xffffffff) + (low >> 32);
    const u64 other = (a & 0xffffffff) * (b >> 32) + (middle & 0xffffffff);
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
  }
}

wide clamped(wide value) { return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value; }

template <class T>
void check_arithmetic() {
  const std::string t = "." + type_name<T>();
  check_lanes<T, T, T>("add" + t + " %d, %s0, %s1;", [](T a, T b) { return wide{a} + b; });
  check_lanes<T, T, T>("sub" + t + " %d, %s0, %s1;", [](T a, T b) { return wide{a} - b; });
  check_lanes<T, T>("sub" + t + " %d, 5, %s0;", [](T a) { return 5 - wide{a}; });
  check_lanes<T, T, T>("mul.lo" + t + " %d, %s0, %s1;", [](T a, T b) {
    return static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
  });
  check_lanes<T, T, T>("mul.hi" + t + " %d, %s0, %s1;", high_half<T>);
  check_lanes<T, T, T, T>("mad.lo" + t + " %d, %s0, %s1, %s2;", [](T a, T b, T c) {
    return static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b) +
           static_cast<unsigned __int128>(c);
  });
  check_lanes<T, T, T, T>("mad.hi" + t + " %d, %s0, %s1, %s2;",
                          [](T a, T b, T c) { return wide{high_half<T>(a, b)} + c; });
  check_lanes<T, T, T, T>("sad" + t + " %d, %s0, %s1, %s2;",
                          [](T a, T b, T c) { return wide{c} + (wide{a} > b ? wide{a} - b : wide{b} - a); });
  check_lanes<T, T, T>("div" + t + " %d, %s0, %s1;",
                       [](T a, T b) { return b == 0 ? wide{-1} : wide{a} / b; });
  check_lanes<T, T, T>("rem" + t + " %d, %s0, %s1;",
                       [](T a, T b) { return b == 0 ? wide{-1} : wide{a} % b; });
  check_lanes<T, T, T>("min" + t + " %d, %s0, %s1;", [](T a, T b) { return a < b ? a : b; });
  check_lanes<T, T, T>("max" + t + " %d, %s0, %s1;", [](T a, T b) { return a < b ? b : a; });
  if constexpr (std::is_signed_v<T>) {
    check_lanes<T, T>("abs" + t + " %d, %s0;", [](T a) { return a < 0 ? -wide{a} : wide{a}; });
    check_lanes<T, T>("neg" + t + " %d, %s0;", [](T a) { return -wide{a}; });
  }
  if constexpr (sizeof(T) < 8) {
    using D = Double<T>;
    check_lanes<D, T, T>("mul.wide" + t + " %d, %s0, %s1;", [](T a, T b) { return wide{a} * b; });
    check_lanes<D, T, T, D>("mad.wide" + t + " %d, %s0, %s1, %s2;",
                            [](T a, T b, D c) { return wide{a} * b + c; });
  }
}

}  // namespace

TEST_CASE("integer arithmetic of every type") {
  check_arithmetic<u16>();
  check_arithmetic<s16>();
  check_arithmetic<u32>();
  check_arithmetic<s32>();
  check_arithmetic<u64>();
  check_arithmetic<s64>();
}

TEST_CASE("saturating integer arithmetic") {
  check_lanes<s32, s32, s32>("add.sat.s32 %d, %s0, %s1;", [](s32 a, s32 b) { return clamped(wide{a} + b); });
  check_lanes<s32, s32, s32>("sub.sat.s32 %d, %s0, %s1;", [](s32 a, s32 b) { return clamped(wide{a} - b); });
  check_lanes<s32, s32, s32, s32>("mad.hi.sat.s32 %d, %s0, %s1, %s2;",
                                  [](s32 a, s32 b, s32 c) { return clamped((wide{a} * b >> 32) + c); });
  check_lanes<s32, s32, s32>("min.relu.s32 %d, %s0, %s1;",
                             [](s32 a, s32 b) { return std::max(0, std::min(a, b)); });
  check_lanes<s32, s32, s32>("max.relu.s32 %d, %s0, %s1;",
                             [](s32 a, s32 b) { return std::max(0, std::max(a, b)); });
}

namespace {

/// f of the lower halves and f of the upper halves, as halves.
template <class T, class F>
auto on_halves(F f) {
  return [f](u32 a, u32 b) {
    const auto low = static_cast<u16>(f(static_cast<T>(a % 65536), static_cast<T>(b % 65536)));
    const auto high = static_cast<u16>(f(static_cast<T>(a / 65536), static_cast<T>(b / 65536)));
    return u32{low} + 65536u * high;
  };
}

}  // namespace

TEST_CASE("arithmetic of pairs of 16-bit integers") {
  const auto add = [](auto a, auto b) { return a + b; };
  const auto minimum = [](auto a, auto b) { return a < b ? a : b; };
  const auto maximum = [](auto a, auto b) { return a < b ? b : a; };
  const auto relu = [](auto f) { return [f](s16 a, s16 b) { return std::max<int>(0, f(a, b)); }; };
  check_lanes<u32, u32, u32>("add.u16x2 %d, %s0, %s1;", on_halves<u16>(add));
  check_lanes<u32, u32, u32>("add.s16x2 %d, %s0, %s1;", on_halves<s16>(add));
  check_lanes<u32, u32, u32>("min.u16x2 %d, %s0, %s1;", on_halves<u16>(minimum));
  check_lanes<u32, u32, u32>("max.u16x2 %d, %s0, %s1;", on_halves<u16>(maximum));
  check_lanes<u32, u32, u32>("min.s16x2 %d, %s0, %s1;", on_halves<s16>(minimum));
  check_lanes<u32, u32, u32>("max.s16x2 %d, %s0, %s1;", on_halves<s16>(maximum));
  check_lanes<u32, u32, u32>("min.relu.s16x2 %d, %s0, %s1;", on_halves<s16>(relu(minimum)));
  check_lanes<u32, u32, u32>("max.s16x2.relu %d, %s0, %s1;", on_halves<s16>(relu(maximum)));
}

TEST_CASE("24-bit products") {
  const auto u24 = [](u32 a) { return wide{a % (1u << 24)}; };
  const auto s24 = [](s32 a) { return wide{static_cast<u32>(a) % (1u << 24)} - (a >> 23 & 1 ? 1 << 24 : 0); };
  check_lanes<u32, u32, u32>("mul24.lo.u32 %d, %s0, %s1;", [&](u32 a, u32 b) { return u24(a) * u24(b); });
  check_lanes<u32, u32, u32>("mul24.hi.u32 %d, %s0, %s1;",
                             [&](u32 a, u32 b) { return u24(a) * u24(b) >> 16; });
  check_lanes<s32, s32, s32>("mul24.lo.s32 %d, %s0, %s1;", [&](s32 a, s32 b) { return s24(a) * s24(b); });
  check_lanes<s32, s32, s32>("mul24.hi.s32 %d, %s0, %s1;",
                             [&](s32 a, s32 b) { return s24(a) * s24(b) >> 16; });
  check_lanes<u32, u32, u32, u32>("mad24.lo.u32 %d, %s0, %s1, %s2;",
                                  [&](u32 a, u32 b, u32 c) { return u24(a) * u24(b) + c; });
  check_lanes<u32, u32, u32, u32>("mad24.hi.u32 %d, %s0, %s1, %s2;",
                                  [&](u32 a, u32 b, u32 c) { return (u24(a) * u24(b) >> 16) + c; });
  check_lanes<s32, s32, s32, s32>("mad24.lo.s32 %d, %s0, %s1, %s2;",
                                  [&](s32 a, s32 b, s32 c) { return s24(a) * s24(b) + c; });
  check_lanes<s32, s32, s32, s32>("mad24.hi.s32 %d, %s0, %s1, %s2;",
                                  [&](s32 a, s32 b, s32 c) { return (s24(a) * s24(b) >> 16) + c; });
  check_lanes<s32, s32, s32, s32>("mad24.hi.sat.s32 %d, %s0, %s1, %s2;",
                                  [&](s32 a, s32 b, s32 c) { return clamped((s24(a) * s24(b) >> 16) + c); });
}

namespace {

/// The part of `bits` bits at position `at`, as a signed or an unsigned number.
int part(u32 word, int at, int bits, bool is_signed) {
  const int value = static_cast<int>(word >> at) & ((1 << bits) - 1);
  return is_signed && value >= 1 << (bits - 1) ? value - (1 << bits) : value;
}

}  // namespace

TEST_CASE("dot products and absolute differences of bytes") {
  for (const bool a_signed : {false, true})
    for (const bool b_signed : {false, true}) {
      const std::string types = std::string(a_signed ? ".s32" : ".u32") + (b_signed ? ".s32" : ".u32");
      check_lanes<u32, u32, u32, u32>("dp4a" + types + " %d, %s0, %s1, %s2;", [&](u32 a, u32 b, u32 c) {
        wide sum = c;
        for (int k = 0; k < 32; k += 8) sum += part(a, k, 8, a_signed) * part(b, k, 8, b_signed);
        return sum;
      });
      for (const int half : {0, 1})
        check_lanes<u32, u32, u32, u32>(
            std::string("dp2a.") + (half ? "hi" : "lo") + types + " %d, %s0, %s1, %s2;",
            [&](u32 a, u32 b, u32 c) {
              return wide{c} + wide{part(a, 0, 16, a_signed)} * part(b, 16 * half, 8, b_signed) +
                     wide{part(a, 16, 16, a_signed)} * part(b, 16 * half + 8, 8, b_signed);
            });
      for (const int width : {8, 16}) {
        const std::string opcode = "vabsdiff" + std::to_string(32 / width);
        const auto difference = [&](u32 a, u32 b, int at) {
          return std::abs(part(a, at, width, a_signed) - part(b, at, width, b_signed));
        };
        check_lanes<u32, u32, u32, u32>(opcode + ".u32" + types + ".add %d, %s0, %s1, %s2;",
                                        [&](u32 a, u32 b, u32 c) {
                                          for (int k = 0; k < 32; k += width)
                                            c += static_cast<u32>(difference(a, b, k));
                                          return c;
                                        });
        const auto parts = [&](int limit) {
          return [&difference, width, limit](u32 a, u32 b, u32) {
            u32 word = 0;
            for (int k = 0; k < 32; k += width)
              word += static_cast<u32>(std::min(limit, difference(a, b, k)) % (1 << width)) << k;
            return word;
          };
        };
        const int most = (1 << width) - 1;
        check_lanes<u32, u32, u32, u32>(opcode + ".u32" + types + " %d, %s0, %s1, %s2;", parts(2 * most));
        check_lanes<u32, u32, u32, u32>(opcode + ".u32" + types + ".sat %d, %s0, %s1, %s2;", parts(most));
        check_lanes<u32, u32, u32, u32>(opcode + ".s32" + types + ".sat %d, %s0, %s1, %s2;", parts(most / 2));
      }
    }
}

TEST_CASE("carry chains add, subtract and multiply numbers of several words") {
  using u128 = unsigned __int128;
  // Two words of 32 bits, for each type of that width; the last carry becomes a word of its own.
  for (const std::string t : {".u32", ".s32"}) {
    const std::string split =
        ".reg .b32 %x<4>, %y<4>, %z<4>;\nmov.b64 {%x0, %x1}, %s0;\nmov.b64 {%y0, %y1}, %s1;\n";
    const std::string join = "mov.b64 %d, {%z0, %z1};\n";
    check_lanes<u64, u64, u64>(
        "{" + split + "add.cc" + t + " %z0, %x0, %y0;\naddc" + t + " %z1, %x1, %y1;\n" + join + "}",
        [](u64 a, u64 b) { return a + b; });
    check_lanes<u64, u64, u64>(
        "{" + split + "sub.cc" + t + " %z0, %x0, %y0;\nsubc" + t + " %z1, %x1, %y1;\n" + join + "}",
        [](u64 a, u64 b) { return a - b; });
    check_lanes<u32, u64, u64>("{" + split + "add.cc" + t + " %z0, %x0, %y0;\naddc.cc" + t +
                                   " %z1, %x1, %y1;\naddc" + t + " %d, 0, 0;\n}",
                               [](u64 a, u64 b) { return (u128{a} + b) >> 64; });
    check_lanes<u32, u64, u64>("{" + split + "sub.cc" + t + " %z0, %x0, %y0;\nsubc.cc" + t +
                                   " %z1, %x1, %y1;\nsubc" + t + " %d, 0, 0;\n}",
                               [](u64 a, u64 b) { return a < b ? ~0u : 0u; });
  }
  for (const std::string t : {".u64", ".s64"}) {
    check_lanes<u64, u64, u64, u64>(
        "{ .reg .b64 %x;\nadd.cc" + t + " %x, %s0, %s1;\naddc" + t + " %d, %s2, 0;\n}",
        [](u64 a, u64 b, u64 c) { return c + static_cast<u64>((u128{a} + b) >> 64); });
    check_lanes<u64, u64, u64, u64>(
        "{ .reg .b64 %x;\nsub.cc" + t + " %x, %s0, %s1;\nsubc" + t + " %d, %s2, 0;\n}",
        [](u64 a, u64 b, u64 c) { return c - (a < b); });
  }
  // The 64 bits of a product from 32-bit words, and their upper 64, word by word.
  const std::string product =
      "{ .reg .b32 %a<2>, %b<2>, %z<4>;\nmov.b64 {%a0, %a1}, %s0;\nmov.b64 {%b0, %b1}, %s1;\n"
      "mul.lo.u32 %z0, %a0, %b0;\nmul.hi.u32 %z1, %a0, %b0;\n"
      "mad.lo.cc.u32 %z1, %a1, %b0, %z1;\nmadc.hi.u32 %z2, %a1, %b0, 0;\n"
      "mad.lo.cc.u32 %z1, %a0, %b1, %z1;\nmadc.hi.cc.u32 %z2, %a0, %b1, %z2;\naddc.u32 %z3, 0, 0;\n"
      "mad.lo.cc.u32 %z2, %a1, %b1, %z2;\nmadc.hi.u32 %z3, %a1, %b1, %z3;\n";
  check_lanes<u64, u64, u64>(product + "mov.b64 %d, {%z0, %z1};\n}", [](u64 a, u64 b) { return a * b; });
  check_lanes<u64, u64, u64>(product + "mov.b64 %d, {%z2, %z3};\n}",
                             [](u64 a, u64 b) { return (u128{a} * b) >> 64; });
  // mad.hi.cc, madc.lo and their signed and 64-bit forms.
  check_lanes<u32, u32, u32, u32>("{ .reg .b32 %x;\nmad.hi.cc.u32 %x, %s0, %s1, %s2;\naddc.u32 %d, %x, 0;\n}",
                                  [](u32 a, u32 b, u32 c) {
                                    const u64 sum = (u64{a} * b >> 32) + c;
                                    return sum + (sum >> 32);
                                  });
  check_lanes<s32, s32, s32, s32>(
      "{ .reg .b32 %x;\nmad.hi.cc.s32 %x, %s0, %s1, %s2;\nmadc.lo.s32 %d, %x, 3, 1;\n}",
      [](s32 a, s32 b, s32 c) {
        const u64 sum = u64{static_cast<u32>(s64{a} * b >> 32)} + static_cast<u32>(c);
        return 3 * (sum & 0xffffffff) + 1 + (sum >> 32);
      });
  check_lanes<u64, u64, u64, u64>(
      "{ .reg .b64 %x;\nmad.lo.cc.u64 %x, %s0, %s1, %s2;\nmadc.hi.u64 %d, %s0, %s1, %x;\n}",
      [](u64 a, u64 b, u64 c) {
        const u128 sum = u128{a * b} + c;
        return static_cast<u64>((u128{a} * b) >> 64) + static_cast<u64>(sum) + static_cast<u64>(sum >> 64);
      });
}

TEST_CASE("a lane that a guard switches off keeps its carry and its result") {
  check_lanes<u32, u32, u32, Predicate>(
      "{ .reg .b32 %x;\nadd.cc.u32 %x, 0xffffffff, 1;\nmov.b32 %d, 7;\n@%s2 add.cc.u32 %d, %s0, "
      "%s1;\naddc.u32 %d, %d, 0;\n}",
      [](u32 a, u32 b, Predicate p) {
        if (p == Predicate{}) return u64{8};
        const u64 sum = u64{a} + b;
        return sum + (sum >> 32);
      });
}

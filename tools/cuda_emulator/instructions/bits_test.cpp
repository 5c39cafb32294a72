#include <algorithm>

#include "tests/lanewise.h"

using namespace emulator::test;

// Expected results are put together bit by bit, as the PTX ISA defines them.
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <class T>
constexpr int width = 8 * sizeof(T);
template <class T>
bool bit(T word, int position) {
  return static_cast<u64>(word) >> position & 1;
}
/// The number whose bit i is f(i).
template <class T, class F>
T from_bits(F f) {
  u64 word = 0;
  for (int i = 0; i < width<T>; ++i) word |= u64{f(i)} << i;
  return static_cast<T>(word);
}
template <class T>
std::string b_type() {
  return ".b" + std::to_string(width<T>);
}
template <class T>
std::string type_of() {
  return (std::is_signed_v<T> ? ".s" : ".u") + std::to_string(width<T>);
}

template <class T>
void check_counts() {
  check_lanes<u32, T>("popc" + b_type<T>() + " %d, %s0;", [](T a) {
    u32 count = 0;
    for (int i = 0; i < width<T>; ++i) count += bit(a, i);
    return count;
  });
  check_lanes<u32, T>("clz" + b_type<T>() + " %d, %s0;", [](T a) {
    u32 count = 0;
    for (int i = width<T> - 1; i >= 0 && !bit(a, i); --i) ++count;
    return count;
  });
  check_lanes<T, T>("brev" + b_type<T>() + " %d, %s0;",
                    [](T a) { return from_bits<T>([&](int i) { return bit(a, width<T> - 1 - i); }); });
}

template <class T>
u32 highest_non_sign_bit(T a) {
  for (int i = width<T> - 1; i >= 0; --i)
    if (bit(a, i) != (std::is_signed_v<T> && a < 0)) return static_cast<u32>(i);
  return ~0u;
}

template <class T>
void check_fields() {
  check_lanes<u32, T>("bfind" + type_of<T>() + " %d, %s0;", highest_non_sign_bit<T>);
  check_lanes<u32, T>("bfind.shiftamt" + type_of<T>() + " %d, %s0;", [](T a) {
    const u32 found = highest_non_sign_bit(a);
    return found == ~0u ? found : static_cast<u32>(width<T> - 1) - found;
  });
  check_lanes<T, T, u32, u32>("bfe" + type_of<T>() + " %d, %s0, %s1, %s2;", [](T a, u32 b, u32 c) {
    const int msb = width<T> - 1, position = static_cast<int>(b % 256), length = static_cast<int>(c % 256);
    const bool sign = std::is_signed_v<T> && length > 0 && bit(a, std::min(position + length - 1, msb));
    return from_bits<T>(
        [&](int i) { return i < length && position + i <= msb ? bit(a, position + i) : sign; });
  });
}

template <class T>
void check_insertion() {
  check_lanes<T, T, T, u32, u32>(
      "bfi" + b_type<T>() + " %d, %s0, %s1, %s2, %s3;", [](T a, T b, u32 c, u32 d) {
        const int position = static_cast<int>(c % 256), length = static_cast<int>(d % 256);
        return from_bits<T>(
            [&](int i) { return i >= position && i - position < length ? bit(a, i - position) : bit(b, i); });
      });
}

}  // namespace

TEST_CASE("bits are counted, found and reversed") {
  check_counts<u32>();
  check_counts<u64>();
  check_lanes<u32, u32, u32, s32>("{ .reg .b32 %x;\nand.b32 %x, %s1, 31;\nfns.b32 %d, %s0, %x, %s2;\n}",
                                  [](u32 mask, u32 any_base, s32 offset) {
                                    const int base = static_cast<int>(any_base % 32);
                                    if (offset == 0) return bit(mask, base) ? static_cast<u32>(base) : ~0u;
                                    s64 left = offset > 0 ? s64{offset} : -s64{offset};
                                    for (int i = base; i >= 0 && i<32; i += offset> 0 ? 1 : -1)
                                      if (bit(mask, i) && --left == 0) return static_cast<u32>(i);
                                    return ~0u;
                                  });
}

TEST_CASE("bit fields") {
  check_fields<u32>();
  check_fields<s32>();
  check_fields<u64>();
  check_fields<s64>();
  check_insertion<u32>();
  check_insertion<u64>();
  for (const bool clamps : {true, false}) {
    const std::string mode = clamps ? ".clamp" : ".wrap";
    check_lanes<u32, u32, u32>("bmsk" + mode + ".b32 %d, %s0, %s1;", [&](u32 position, u32 length) {
      if (!clamps) {
        position %= 32;
        length %= 32;
      }
      return from_bits<u32>(
          [&](int i) { return static_cast<u32>(i) >= position && static_cast<u32>(i) - position < length; });
    });
    const auto extended = [&](auto a, u32 n, bool is_signed) {
      const u32 length = clamps ? std::min(n, 32u) : n % 32;
      return from_bits<u32>([&](int i) {
        if (static_cast<u32>(i) < length) return bit(a, i);
        return is_signed && length > 0 && bit(a, static_cast<int>(length) - 1);
      });
    };
    check_lanes<u32, u32, u32>("szext" + mode + ".u32 %d, %s0, %s1;",
                               [&](u32 a, u32 n) { return extended(a, n, false); });
    check_lanes<s32, s32, u32>("szext" + mode + ".s32 %d, %s0, %s1;",
                               [&](s32 a, u32 n) { return extended(a, n, true); });
  }
}

namespace {

template <class T>
void check_logic() {
  const std::string t = b_type<T>();
  check_lanes<T, T, T>("and" + t + " %d, %s0, %s1;", [](T a, T b) { return a & b; });
  check_lanes<T, T, T>("or" + t + " %d, %s0, %s1;", [](T a, T b) { return a | b; });
  check_lanes<T, T, T>("xor" + t + " %d, %s0, %s1;", [](T a, T b) { return a ^ b; });
  check_lanes<T, T>("and" + t + " %d, %s0, 0x55;", [](T a) { return a & 0x55; });
  check_lanes<T, T>("not" + t + " %d, %s0;", [](T a) { return ~a; });
  check_lanes<T, T>("cnot" + t + " %d, %s0;", [](T a) { return a ? 0 : 1; });
}

template <class T>
void check_shifts(const std::string& t) {
  const auto right = [](T a, u32 n) {
    return from_bits<T>([&](int i) {
      const u64 from = u64{n} + static_cast<u64>(i);
      return from < static_cast<u64>(width<T>) ? bit(a, static_cast<int>(from))
                                               : std::is_signed_v<T> && a < 0;
    });
  };
  check_lanes<T, T, u32>("shr" + t + " %d, %s0, %s1;", right);
  check_lanes<T, T>("shr" + t + " %d, %s0, 9;", [&](T a) { return right(a, 9); });
}

}  // namespace

TEST_CASE("logic of every width") {
  check_logic<u16>();
  check_logic<u32>();
  check_logic<u64>();
}

TEST_CASE("logic of predicates, negated sources too") {
  using P = Predicate;
  const auto is = [](P p) { return p == P{1}; };
  check_lanes<P, P, P>("and.pred %d, %s0, %s1;", [&](P a, P b) { return is(a) && is(b); });
  check_lanes<P, P, P>("or.pred %d, %s0, %s1;", [&](P a, P b) { return is(a) || is(b); });
  check_lanes<P, P, P>("xor.pred %d, %s0, %s1;", [&](P a, P b) { return is(a) != is(b); });
  check_lanes<P, P>("not.pred %d, %s0;", [&](P a) { return !is(a); });
  check_lanes<P, P, P>("and.pred %d, !%s0, %s1;", [&](P a, P b) { return !is(a) && is(b); });
  check_lanes<P, P, P>("or.pred %d, %s0, !%s1;", [&](P a, P b) { return is(a) || !is(b); });
  check_lanes<P, P, P, P>("mov.pred %d, %s2;\n@%s1 not.pred %d, %s0;",
                          [&](P a, P b, P c) { return is(b) ? !is(a) : is(c); });
}

TEST_CASE("every function of lop3") {
  for (int table = 0; table < 256; ++table)
    check_lanes<u32, u32, u32, u32>(
        "lop3.b32 %d, %s0, %s1, %s2, " + std::to_string(table) + ";", [&](u32 a, u32 b, u32 c) {
          return from_bits<u32>([&](int i) { return bit(table, 4 * bit(a, i) + 2 * bit(b, i) + bit(c, i)); });
        });
  const auto is = [](Predicate p) { return p == Predicate{1}; };
  check_lanes<Predicate, u32, u32, Predicate>(
      "lop3.or.b32 _|%d, %s0, %s1, 0, 0xc0, %s2;",
      [&](u32 a, u32 b, Predicate q) { return (a & b) != 0 || is(q); });
  check_lanes<Predicate, u32, u32, Predicate>(
      "lop3.and.b32 _|%d, %s0, %s1, 0, 0xc0, !%s2;",
      [&](u32 a, u32 b, Predicate q) { return (a & b) != 0 && !is(q); });
}

TEST_CASE("shifts clamp their amount") {
  check_shifts<u16>(".u16");
  check_shifts<u16>(".b16");
  check_shifts<s16>(".s16");
  check_shifts<u32>(".u32");
  check_shifts<u32>(".b32");
  check_shifts<s32>(".s32");
  check_shifts<u64>(".u64");
  check_shifts<u64>(".b64");
  check_shifts<s64>(".s64");
  const auto left = []<class T>(T a, u32 n) {
    return from_bits<T>([&](int i) { return static_cast<u32>(i) >= n && bit(a, i - static_cast<int>(n)); });
  };
  check_lanes<u16, u16, u32>("shl.b16 %d, %s0, %s1;", left);
  check_lanes<u32, u32, u32>("shl.b32 %d, %s0, %s1;", left);
  check_lanes<u64, u64, u32>("shl.b64 %d, %s0, %s1;", left);
}

TEST_CASE("funnel shifts") {
  for (const bool clamps : {true, false}) {
    const std::string mode = clamps ? ".clamp" : ".wrap";
    const auto amount = [&](u32 n) { return static_cast<int>(clamps ? std::min(n, 32u) : n % 32); };
    const auto joined = [](u32 a, u32 b, int i) {
      return i < 0 ? false : i < 32 ? bit(a, i) : bit(b, i - 32);
    };
    check_lanes<u32, u32, u32, u32>("shf.l" + mode + ".b32 %d, %s0, %s1, %s2;", [&](u32 a, u32 b, u32 n) {
      return from_bits<u32>([&](int i) { return joined(a, b, 32 + i - amount(n)); });
    });
    check_lanes<u32, u32, u32, u32>("shf.r" + mode + ".b32 %d, %s0, %s1, %s2;", [&](u32 a, u32 b, u32 n) {
      return from_bits<u32>([&](int i) { return joined(a, b, i + amount(n)); });
    });
  }
}

TEST_CASE("bytes are permuted") {
  const auto byte = [](u32 a, u32 b, int k) { return (k < 4 ? a >> 8 * k : b >> 8 * (k - 4)) & 0xff; };
  check_lanes<u32, u32, u32, u32>("prmt.b32 %d, %s0, %s1, %s2;", [&](u32 a, u32 b, u32 selector) {
    u32 word = 0;
    for (int k = 0; k < 4; ++k) {
      const u32 nibble = selector >> 4 * k & 15, chosen = byte(a, b, static_cast<int>(nibble % 8));
      word |= (nibble < 8 ? chosen : chosen >= 128 ? 255u : 0u) << 8 * k;
    }
    return word;
  });
  // Source bytes of each mode as formulas of c = 0 ... 3 and the byte of the result.
  const auto check_mode = [&](const std::string& mode, auto source) {
    check_lanes<u32, u32, u32, u32>("prmt.b32." + mode + " %d, %s0, %s1, %s2;", [&](u32 a, u32 b, u32 c) {
      u32 word = 0;
      for (int k = 0; k < 4; ++k) word |= byte(a, b, source(static_cast<int>(c % 4), k)) << 8 * k;
      return word;
    });
  };
  check_mode("f4e", [](int c, int k) { return c + k; });
  check_mode("b4e", [](int c, int k) { return (c - k + 8) % 8; });
  check_mode("rc8", [](int c, int) { return c; });
  check_mode("ecl", [](int c, int k) { return std::max(c, k); });
  check_mode("ecr", [](int c, int k) { return std::min(c, k); });
  check_mode("rc16", [](int c, int k) { return 2 * (c % 2) + k % 2; });
}

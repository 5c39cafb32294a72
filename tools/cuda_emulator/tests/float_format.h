#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "instructions/rounding.h"

/// Floating-point results by definition, for tests: an exact value is located among the values of a format by
/// comparisons alone, in 113-bit arithmetic that never rounds here.
namespace emulator::test::formats {

__extension__ typedef __float128 Quad;

/// head + tail, exactly; |tail| is at most half a unit in the last place of head.
struct Exact {
  Quad head, tail = 0;
  int compare(Quad value) const {
    if (head != value) return head > value ? 1 : -1;
    return tail > 0 ? 1 : tail < 0 ? -1 : 0;
  }
  bool negative() const { return compare(0) < 0; }
};
inline Exact exact_sum(Quad a, Quad b) {
  const Quad sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

/// A binary format of IEEE 754's kind. Patterns without sign count its values upwards from 0.
struct Format {
  int exponent_bits, fraction_bits;
  bool has_infinity = true;  ///< false: e4m3, whose largest exponent holds numbers
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int bits() const { return 1 + exponent_bits + fraction_bits; }
  std::uint64_t sign() const { return std::uint64_t{1} << (bits() - 1); }
  /// The first pattern that is no number. Its value by the rule of numbers is where rounding overflows to.
  std::uint64_t beyond() const {
    return has_infinity ? ((std::uint64_t{1} << exponent_bits) - 1) << fraction_bits
                        : (std::uint64_t{1} << (exponent_bits + fraction_bits)) - 1;
  }
  bool is_nan(std::uint64_t pattern) const {
    pattern &= sign() - 1;
    return has_infinity ? pattern > beyond() : pattern == beyond();
  }
  bool is_infinite(std::uint64_t pattern) const {
    return has_infinity && (pattern & (sign() - 1)) == beyond();
  }
  /// A value by its pattern (with or without the sign).
  Quad value(std::uint64_t pattern) const {
    const bool negative = pattern & sign();
    pattern &= sign() - 1;
    const std::uint64_t fraction = pattern & ((std::uint64_t{1} << fraction_bits) - 1);
    const int exponent = static_cast<int>(pattern >> fraction_bits);
    if (exponent == 0) {
      const Quad unit = static_cast<Quad>(std::ldexp(1.0, 1 - bias() - fraction_bits));
      return static_cast<Quad>(fraction) * (negative ? -unit : unit);
    }
    // The bits of a Quad: 15 of exponent with bias 16383, 112 of fraction.
    const std::uint64_t upper_fraction =
        fraction_bits > 48 ? fraction >> (fraction_bits - 48) : fraction << (48 - fraction_bits);
    const std::uint64_t words[2] = {fraction_bits > 48 ? fraction << (112 - fraction_bits) : 0,
                                    static_cast<std::uint64_t>(negative) << 63 |
                                        static_cast<std::uint64_t>(exponent - bias() + 16383) << 48 |
                                        (upper_fraction & 0xffff'ffff'ffff)};
    Quad magnitude;
    std::memcpy(&magnitude, words, sizeof magnitude);
    return magnitude;
  }
};
constexpr Format f16_format{5, 10}, bf16_format{8, 7}, f32_format{8, 23}, f64_format{11, 52},
    tf32_format{8, 10}, e4m3_format{4, 3, false}, e5m2_format{5, 2};

/// The pattern (with sign) of a value that lies between those of the patterns `low` and `low` + 1, rounded.
/// compare(v): the sign of |x| - v.
template <class Compare>
std::uint64_t round_between(const Format& format, std::uint64_t low, Compare compare, bool negative,
                            Rounding rounding) {
  std::uint64_t result = low;
  if (compare(format.value(low)) != 0) {
    const int side = compare((format.value(low) + format.value(low + 1)) / 2);
    const bool up = rounding == Rounding::up     ? !negative
                    : rounding == Rounding::down ? negative
                    : rounding == Rounding::zero ? false
                    : rounding == Rounding::away ? side >= 0
                                                 : side > 0 || (side == 0 && (low & 1));
    result += up;
  }
  return negative ? result | format.sign() : result;
}
/// The pattern (with sign) of a finite value, rounded. A zero gets the sign of `negative`.
template <class Compare>
std::uint64_t round_magnitude(const Format& format, Compare compare, bool negative, Rounding rounding) {
  std::uint64_t low = 0, high = format.beyond();  // value(low) <= |x|; |x| < value(high) or high is beyond
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (compare(format.value(middle)) >= 0 ? low : high) = middle;
  }
  return round_between(format, low, compare, negative, rounding);
}

inline std::uint64_t round_exact(const Format& format, Exact x, Rounding rounding,
                                 bool negative_zero = false) {
  const bool negative = x.negative();
  const Exact magnitude = negative ? Exact{-x.head, -x.tail} : x;
  const bool zero = x.compare(0) == 0;
  return round_magnitude(
      format, [&](Quad value) { return magnitude.compare(value); }, zero ? negative_zero : negative,
      rounding);
}

/// Patterns with signs: corners of the format, numbers of few bits, numbers near 1, any bits.
inline std::vector<std::uint64_t> sample_patterns(const Format& format, std::size_t count,
                                                  std::uint64_t seed) {
  const std::uint64_t sign = format.sign(), least_normal = std::uint64_t{1} << format.fraction_bits;
  const std::uint64_t one = static_cast<std::uint64_t>(format.bias()) << format.fraction_bits,
                      beyond = format.beyond();
  const std::uint64_t corners[] = {0,
                                   1,
                                   2,
                                   3,
                                   least_normal - 1,
                                   least_normal,
                                   least_normal + 1,
                                   one - 1,
                                   one,
                                   one + 1,
                                   one + least_normal,
                                   one - least_normal,
                                   beyond - 2,
                                   beyond - 1,
                                   beyond,
                                   format.has_infinity ? beyond + 1 : beyond,
                                   sign - 1};
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> patterns;
  while (patterns.size() < count) {
    const std::uint64_t bits = random(), picked = random();
    switch (picked % 5) {
      case 0:
        patterns.push_back(corners[bits % std::size(corners)] | (picked >> 40 & 1 ? sign : 0));
        break;
      case 1: {  // few bits of significand, exponent within 40 of 1's
        const std::uint64_t near = one + (bits % 80) * least_normal - 40 * least_normal;
        const std::uint64_t pattern = near + (bits >> 32 & 7) * (least_normal >> 3);
        patterns.push_back((pattern < beyond ? pattern : one) | (picked >> 40 & 1 ? sign : 0));
        break;
      }
      case 2:
        patterns.push_back((one + bits % (least_normal * 4) - least_normal * 2) |
                           (picked >> 40 & 1 ? sign : 0));
        break;
      default:
        patterns.push_back(bits & (sign | (sign - 1)));
    }
  }
  return patterns;
}

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulator::test::formats

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

/// Rounding of exact values by integer arithmetic: the reference for floating-point instructions. Nothing here depends on the
/// host's rounding mode.
namespace emulator::test {

/// A value as the unevaluated sum of two numbers: the second is what the first, rounded to 113 bits, leaves out.
struct Exact {
  __float128 value, rest = 0;
};

/// a + b without error (Knuth's two-sum).
inline Exact exact_sum(__float128 a, __float128 b) {
  const __float128 sum = a + b, of_b = sum - a, of_a = sum - of_b;
  return {sum, (a - of_a) + (b - of_b)};
}

struct Format {
  int digits;        ///< of the significand, with the leading one
  int min_exponent;  ///< of the smallest normal number
  int max_exponent;  ///< of the largest finite number
};
constexpr Format f16_format{11, -14, 15}, bf16_format{8, -126, 127}, f32_format{24, -126, 127},
    f64_format{53, -1022, 1023};

/// The names of PTX: rn to nearest even, rz towards zero, rm down, rp up.
enum class Direction { rn, rz, rm, rp };

namespace detail {
inline int exponent_of(__float128 positive) {
  unsigned __int128 bits;
  std::memcpy(&bits, &positive, sizeof bits);
  return static_cast<int>(bits >> 112) - 16383;
}
inline __float128 power_of_two(int exponent) {
  const unsigned __int128 bits = static_cast<unsigned __int128>(exponent + 16383) << 112;
  __float128 power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}
}  // namespace detail

/// The finite value rounded once; subnormal numbers of the format are kept. Every number of the formats is a double.
inline double round_to(Format format, Direction direction, Exact exact) {
  if (exact.value == 0) return static_cast<double>(exact.value);
  const bool negative = exact.value < 0;
  const __float128 magnitude = negative ? -exact.value : exact.value,
                   rest = negative ? -exact.rest : exact.rest;
  int exponent = detail::exponent_of(magnitude);
  if (rest < 0 && magnitude == detail::power_of_two(exponent)) --exponent;
  const int unit = std::max(exponent, format.min_exponent) - (format.digits - 1);
  const __float128 in_units = magnitude * detail::power_of_two(-unit);
  auto units = static_cast<__int128>(in_units);
  __float128 fraction = in_units - static_cast<__float128>(units);
  __float128 left = rest;
  if (fraction == 0 && left < 0) {  // just below a whole number of units
    --units;
    fraction = 1;
  }
  const bool inexact = fraction != 0 || left != 0;
  bool away = false;
  switch (direction) {
    case Direction::rn:
      away = fraction > 0.5 || (fraction == 0.5 && (left > 0 || (left == 0 && units % 2 == 1)));
      break;
    case Direction::rz:
      break;
    case Direction::rm:
      away = inexact && negative;
      break;
    case Direction::rp:
      away = inexact && !negative;
      break;
  }
  __float128 result = static_cast<__float128>(units + away) * detail::power_of_two(unit);
  if (result >= detail::power_of_two(format.max_exponent + 1)) {
    const bool to_infinity = direction == Direction::rn || (direction == Direction::rp && !negative) ||
                             (direction == Direction::rm && negative);
    const __float128 largest = detail::power_of_two(format.max_exponent + 1) -
                               detail::power_of_two(format.max_exponent + 1 - format.digits);
    result = to_infinity ? static_cast<__float128>(std::numeric_limits<double>::infinity()) : largest;
  }
  return std::copysign(static_cast<double>(result), negative ? -1.0 : 1.0);
}

/// a * b + c rounded once. An exact zero from opposite signs is -0 downwards, otherwise +0.
inline double fused(Format format, Direction direction, double a, double b, double c) {
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c)) {
    // No product of finite numbers may overflow here: an infinite c decides.
    if (std::isfinite(a) && std::isfinite(b)) return c;
    return a * b + c;
  }
  const __float128 product = static_cast<__float128>(a) * b;
  const Exact exact = exact_sum(product, c);
  if (exact.value == 0) {
    const bool product_negative = std::signbit(a) != std::signbit(b), c_negative = std::signbit(c);
    if (product_negative == c_negative) return product_negative ? -0.0 : 0.0;
    return direction == Direction::rm ? -0.0 : 0.0;
  }
  return round_to(format, direction, exact);
}
inline double sum(Format format, Direction direction, double a, double b) {
  return fused(format, direction, a, 1, b);
}
inline double product(Format format, Direction direction, double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return a * b;
  const __float128 exact = static_cast<__float128>(a) * b;
  return exact == 0 ? static_cast<double>(exact) : round_to(format, direction, {exact});
}

/// The whole number next to x in the direction; rn: nearest even. x finite.
inline __int128 whole(Direction direction, double x) {
  if (std::abs(x) >= 0x1p100)
    return x < 0 ? -(static_cast<__int128>(1) << 100) : static_cast<__int128>(1) << 100;
  const auto truncated = static_cast<__int128>(x);
  const double fraction = std::abs(x - static_cast<double>(truncated));
  const int away = x < 0 ? -1 : 1;
  bool step = false;
  switch (direction) {
    case Direction::rn:
      step = fraction > 0.5 || (fraction == 0.5 && truncated % 2 != 0);
      break;
    case Direction::rz:
      break;
    case Direction::rm:
      step = fraction > 0 && x < 0;
      break;
    case Direction::rp:
      step = fraction > 0 && x > 0;
      break;
  }
  return truncated + (step ? away : 0);
}

/// The number with these bits, by the definition of f16 and bf16: sign, exponent, fraction.
inline double decode(Format format, std::uint16_t bits) {
  const int fraction_bits = format.digits - 1, exponent_bits = 15 - fraction_bits;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1),
            fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, format.min_exponent - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - format.max_exponent - fraction_bits);
}
/// The bits of a number of the format; NaN is 0x7fff.
inline std::uint16_t encode(Format format, double x) {
  if (std::isnan(x)) return 0x7fff;
  const int fraction_bits = format.digits - 1;
  const unsigned sign = std::signbit(x) ? 0x8000 : 0,
                 infinity = static_cast<unsigned>(2 * format.max_exponent + 1) << fraction_bits;
  const double magnitude = std::abs(x);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity);
  const double smallest = std::ldexp(1, format.min_exponent);
  if (magnitude < smallest)
    return static_cast<std::uint16_t>(
        sign | static_cast<unsigned>(std::ldexp(magnitude, fraction_bits - format.min_exponent)));
  const int exponent = std::ilogb(magnitude);
  const auto significand = static_cast<unsigned>(std::ldexp(magnitude, fraction_bits - exponent));
  const unsigned exponent_field = static_cast<unsigned>(exponent + format.max_exponent) << fraction_bits;
  return static_cast<std::uint16_t>(sign | exponent_field | (significand - (1u << fraction_bits)));
}

}  // namespace emulator::test

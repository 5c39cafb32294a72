#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "instructions/half.h"

/// The 8-bit floating types (PTX ISA 5.2.3): e4m3 (bias 7, no infinity, one NaN) and e5m2 (bias 15, as a short f16).
namespace emulator {

/// To nearest even; what is larger than the largest finite value, infinity included, becomes that value
/// (.rn.satfinite). NaN: 0x7f in both formats.
template <int mantissa_bits, int least_exponent, std::uint8_t largest>
inline std::uint8_t float_to_float8(double x) {
  if (x != x) return 0x7f;
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double magnitude = std::min(std::fabs(x), 0x1p100);
  const int exponent = magnitude == 0 ? least_exponent : std::max(std::ilogb(magnitude), least_exponent);
  const int significand = static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  // A significand that was rounded up to the next power of two carries into the exponent.
  const int bits = ((exponent - least_exponent) << mantissa_bits) + significand;
  return sign | static_cast<std::uint8_t>(std::min<int>(bits, largest));
}
inline std::uint8_t float_to_e4m3(double x) { return float_to_float8<3, -6, 0x7e>(x); }
inline std::uint8_t float_to_e5m2(double x) { return float_to_float8<2, -14, 0x7b>(x); }

/// Exact, NaN to nan_half.
inline std::uint16_t e5m2_to_half(std::uint8_t bits) {
  return (bits & 0x7f) > 0x7c ? nan_half : static_cast<std::uint16_t>(bits << 8);
}
inline std::uint16_t e4m3_to_half(std::uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return nan_half;
  const std::uint16_t sign = (bits & 0x80) << 8;
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return sign | float_to_half(magnitude);
}

}  // namespace emulator

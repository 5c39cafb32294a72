#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "instructions/rounding.h"

/// The 16-bit floating types, as bits: f16 (IEEE binary16) and bf16 (the upper half of an f32). PTX ISA 5.2.2, 5.2.3.
namespace emulator {

/// Exact. The payload of a NaN is kept.
inline float half_to_float(std::uint16_t half) { return _cvtsh_ss(half); }
inline float bfloat_to_float(std::uint16_t bfloat) {
  return std::bit_cast<float>(std::uint32_t{bfloat} << 16);
}

/// Rounded once, subnormal results kept, overflow by the rules of IEEE 754 (nearest: infinity), NaN to nan_half.
template <Rounding rounding>
inline std::uint16_t float_to_half(float x) {
  static_assert(rounding != Rounding::away, "f16 knows no .rna");
  if (x != x) return nan_half;
  constexpr int to_nearest = 0, to_down = 1, to_up = 2, to_zero = 3;  // imm8 of VCVTPS2PH
  if constexpr (rounding == Rounding::nearest) return _cvtss_sh(x, to_nearest);
  if constexpr (rounding == Rounding::down) return _cvtss_sh(x, to_down);
  if constexpr (rounding == Rounding::up) return _cvtss_sh(x, to_up);
  return _cvtss_sh(x, to_zero);
}
template <Rounding rounding>
inline std::uint16_t float_to_bfloat(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const bool negative = bits >> 31;
  std::uint32_t add = 0;  // to the magnitude, before the lower half is cut off
  if constexpr (rounding == Rounding::nearest) add = 0x7fff + (bits >> 16 & 1);
  if constexpr (rounding == Rounding::away) add = 0x8000;
  if constexpr (rounding == Rounding::down) add = negative ? 0xffff : 0;
  if constexpr (rounding == Rounding::up) add = negative ? 0 : 0xffff;
  return x != x ? nan_half : static_cast<std::uint16_t>((bits + add) >> 16);
}

/// To nearest even.
inline std::uint16_t float_to_half(float x) { return float_to_half<Rounding::nearest>(x); }
inline std::uint16_t float_to_bfloat(float x) { return float_to_bfloat<Rounding::nearest>(x); }

/// The same with the rounding as a value.
inline std::uint16_t float_to_half(float x, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero:
      return float_to_half<Rounding::zero>(x);
    case Rounding::down:
      return float_to_half<Rounding::down>(x);
    case Rounding::up:
      return float_to_half<Rounding::up>(x);
    default:
      return float_to_half<Rounding::nearest>(x);
  }
}
inline std::uint16_t float_to_bfloat(float x, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero:
      return float_to_bfloat<Rounding::zero>(x);
    case Rounding::down:
      return float_to_bfloat<Rounding::down>(x);
    case Rounding::up:
      return float_to_bfloat<Rounding::up>(x);
    case Rounding::away:
      return float_to_bfloat<Rounding::away>(x);
    default:
      return float_to_bfloat<Rounding::nearest>(x);
  }
}

/// From f64, rounded once.
inline std::uint16_t double_to_half(double x, Rounding rounding = Rounding::nearest) {
  return float_to_half(to_odd(x), rounding);
}
inline std::uint16_t double_to_bfloat(double x, Rounding rounding = Rounding::nearest) {
  return float_to_bfloat(to_odd(x), rounding);
}

/// tf32: an f32 whose lower 13 bits are zero. Infinite after overflow; NaN to nan_f32. Takes nearest, away and zero.
inline float float_to_tf32(float x, Rounding rounding) {
  if (x != x) return nan_f32;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (rounding == Rounding::nearest) bits += 0xfff + (bits >> 13 & 1);
  if (rounding == Rounding::away) bits += 0x1000;
  return std::bit_cast<float>(bits & ~0x1fffu);
}

}  // namespace emulator

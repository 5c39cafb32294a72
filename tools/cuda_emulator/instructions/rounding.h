#pragma once
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

/// Rounding of floating-point values in the directions that PTX names (PTX ISA 9.7.3, "rounding modifiers").
namespace emulator {

class Form;

enum class Rounding : std::uint8_t {
  nearest,  ///< .rn: to nearest, ties to even
  zero,     ///< .rz
  down,     ///< .rm: towards minus infinity
  up,       ///< .rp: towards plus infinity
  away,     ///< .rna: to nearest, ties away from zero (conversions only)
};

/// Removes .rn, .rz, .rm or .rp from the statement and returns which; nothing when the statement has none of them.
std::optional<Rounding> take_rounding(Form& form);

/// The host's arithmetic on float and double rounds in the given direction while the object lives. Values must be
/// loaded and stored in between: the compiler moves no access to memory over the switch, but knows nothing of rounding.
class HostRounding {
 public:
  explicit HostRounding(Rounding rounding) : before_(_mm_getcsr()) {
    const std::uint32_t control = rounding == Rounding::down   ? 1u
                                  : rounding == Rounding::up   ? 2u
                                  : rounding == Rounding::zero ? 3u
                                                               : 0u;
    set((before_ & ~(3u << 13)) | control << 13);
  }
  ~HostRounding() { set(before_); }
  HostRounding(const HostRounding&) = delete;
  HostRounding& operator=(const HostRounding&) = delete;

 private:
  static void set(std::uint32_t control) { asm volatile("ldmxcsr %0" : : "m"(control) : "memory"); }
  std::uint32_t before_;
};

constexpr float nan_f32 = std::bit_cast<float>(0x7fff'ffffu);  ///< what f32 instructions give for every NaN
constexpr std::uint16_t nan_half = 0x7fff;                     ///< the same for f16 and bf16

/// Any NaN becomes nan_f32.
inline float canonical(float x) { return x != x ? nan_f32 : x; }
/// Subnormal values become zero of the same sign (.ftz).
inline float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
/// .sat: [0, 1]; NaN and -0 become +0.
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline double saturate(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }

/// x rounded to odd: if x is no float, the neighbour of x whose last bit is 1. A second rounding, to at least two bits
/// fewer than a float has, then gives what one rounding of x would have given.
inline float to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (back != x && x == x) bits = (bits - (std::fabs(back) > std::fabs(x))) | 1;
  return std::bit_cast<float>(bits);
}

/// a * b + c rounded to odd. a and b have at most 26 bits each, so that their product is exact in double.
inline float fma_to_odd(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  const double part = sum - product;  // the error of the sum, exactly: Knuth's TwoSum
  const double error = (product - (sum - part)) + (c - part);
  std::uint64_t bits = std::bit_cast<std::uint64_t>(sum);
  const bool inexact = error < 0 || error > 0;  // false for NaN: infinite operands
  if (inexact && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return to_odd(std::bit_cast<double>(bits));
}

/// x rounded to f32. `away` is not taken.
inline float to_float(double x, Rounding rounding) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  if (rounding == Rounding::nearest || back == x || x != x) return nearest;
  const bool larger = std::fabs(back) > std::fabs(x);  // the magnitude was rounded up
  const bool want_larger = rounding == Rounding::up ? x > 0 : rounding == Rounding::down && x < 0;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  return std::bit_cast<float>(bits + want_larger - larger);
}

}  // namespace emulator

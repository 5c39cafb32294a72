#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

/// Element types of matrices, converted by arithmetic of their own: independent of the emulator's conversions.
namespace emulator::test {

/// How numbers become the bits of an element.
struct Element {
  std::string type;
  int bits;
  std::function<std::uint64_t(double)> encode;
  std::function<double(std::uint64_t)> decode;
};

inline std::uint16_t f16_bits(double x) {  // x is an f16 number of normal range, or zero
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(x), &exponent);
  return static_cast<std::uint16_t>((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                                    (static_cast<int>(fraction * 2048) & 0x3ff));
}
inline double f16_value(std::uint64_t bits) {
  const int exponent = bits >> 10 & 31;
  const double magnitude = exponent ? std::ldexp(1024 + static_cast<double>(bits & 0x3ff), exponent - 25)
                                    : std::ldexp(static_cast<double>(bits & 0x3ff), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}
inline std::uint32_t f32_bits(double x) { return std::bit_cast<std::uint32_t>(static_cast<float>(x)); }
inline double f32_value(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
inline std::uint64_t integer_bits(double x) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
}

inline const Element f16{"f16", 16, f16_bits, f16_value};
inline const Element bf16{"bf16", 16, [](double x) { return f32_bits(x) >> 16; },
                          [](std::uint64_t b) { return f32_value(b << 16); }};
inline const Element tf32{"tf32", 32, f32_bits, f32_value};
inline const Element f32{"f32", 32, f32_bits, f32_value};
inline const Element f64{"f64", 64, [](double x) { return std::bit_cast<std::uint64_t>(x); },
                         [](std::uint64_t b) { return std::bit_cast<double>(b); }};
inline const Element s8{"s8", 8, integer_bits, [](std::uint64_t b) { return static_cast<std::int8_t>(b); }};
inline const Element u8{"u8", 8, integer_bits, [](std::uint64_t b) { return static_cast<std::uint8_t>(b); }};
inline const Element s32{"s32", 32, integer_bits,
                         [](std::uint64_t b) { return static_cast<std::int32_t>(b); }};
inline const Element e4m3{"e4m3", 8,
                          [](double x) -> std::uint64_t {  // multiples of 1/8 below 2 with 4 significant bits
                            if (x == 0) return 0;
                            int exponent = 0;
                            const double fraction = std::frexp(std::fabs(x), &exponent);
                            return (x < 0 ? 0x80 : 0) | (exponent + 6) << 3 |
                                   (static_cast<int>(fraction * 16) & 7);
                          },
                          nullptr};
inline const Element e5m2{"e5m2", 8, [](double x) -> std::uint64_t { return f16_bits(x) >> 8; }, nullptr};

}  // namespace emulator::test

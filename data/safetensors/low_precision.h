#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

/// Values of codes of eight and four bits, by code.
namespace nemocube {
namespace low_precision_detail {

constexpr float decode_e4m3(std::uint32_t code) {
  const std::uint32_t sign = (code & 0x80U) << 24, exponent = (code >> 3) & 15U, fraction = code & 7U;
  if (exponent == 15 && fraction == 7) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (exponent == 0) {  // multiples of 2^-9
    const float small = static_cast<float>(fraction) / 512;
    return sign != 0 ? -small : small;
  }
  return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
}

constexpr std::array<float, 256> decode_all_e4m3() {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) values[code] = decode_e4m3(code);
  return values;
}

}  // namespace low_precision_detail

/// F8_E4M3 (e4m3fn): sign, 4 bits of exponent with bias 7, 3 of fraction. The largest value is 448; there is
/// no infinity, and 0x7F and 0xFF are NaN. https://arxiv.org/abs/2209.05433
inline constexpr std::array<float, 256> e4m3_values = low_precision_detail::decode_all_e4m3();

/// e2m1: sign, 2 bits of exponent, 1 of fraction. OCP Microscaling Formats 1.0.
inline constexpr std::array<float, 16> e2m1_values{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                   -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

}  // namespace nemocube

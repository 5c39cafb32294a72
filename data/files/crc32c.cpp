#include "data/files/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace nemocube {
namespace {

// A 32-bit number stands for a polynomial over GF(2) of degree below 32: bit 31 is the coefficient of x^0.
constexpr std::uint32_t polynomial = 0x82F63B78;  // x^32 modulo the generator
constexpr std::uint32_t one = std::uint32_t{1} << 31, x_to_8 = std::uint32_t{1} << 23;

constexpr std::uint32_t times_x(std::uint32_t a) { return (a >> 1) ^ (a & 1 ? polynomial : 0); }

constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (std::uint32_t bit = one; bit != 0; bit >>= 1, b = times_x(b))
    if (a & bit) sum ^= b;
  return sum;
}

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: what byte b contributes when k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][b] = value;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t shorter = tables[k - 1][b];
      tables[k][b] = (shorter >> 8) ^ tables[0][shorter & 255];
    }
  return tables;
}
constexpr Tables tables = make_tables();

std::uint64_t load_word(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes,
                                                               std::uint32_t before) {
  std::uint64_t crc = ~before;
  const std::byte *at = bytes.data(), *end = at + bytes.size();
  for (; end - at >= 8; at += 8) crc = _mm_crc32_u64(crc, load_word(at));
  auto rest = static_cast<std::uint32_t>(crc);
  for (; at != end; ++at) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*at));
  return ~rest;
}

/// Thirds, when each has this many bytes, side by side: the instruction ends after three cycles and begins
/// every cycle.
constexpr std::size_t least_third = 16384;

__attribute__((target("sse4.2"))) std::uint32_t by_thirds(std::span<const std::byte> bytes,
                                                          std::uint32_t before) {
  const std::size_t third = bytes.size() / 3 / 8 * 8;
  if (third < least_third) return by_instruction(bytes, before);
  std::uint64_t a = static_cast<std::uint32_t>(~before), b = 0xFFFFFFFF, c = 0xFFFFFFFF;
  const std::byte* at = bytes.data();
  for (const std::byte* const end = at + third; at != end; at += 8) {
    a = _mm_crc32_u64(a, load_word(at));
    b = _mm_crc32_u64(b, load_word(at + third));
    c = _mm_crc32_u64(c, load_word(at + 2 * third));
  }
  std::uint32_t sum = crc32c_combine(~static_cast<std::uint32_t>(a), ~static_cast<std::uint32_t>(b), third);
  sum = crc32c_combine(sum, ~static_cast<std::uint32_t>(c), third);
  return by_instruction(bytes.subspan(3 * third), sum);
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const std::byte *at = bytes.data(), *end = at + bytes.size();
  for (; end - at >= 8; at += 8) {
    const std::uint64_t word = load_word(at) ^ crc;  // little-endian, as everything in this program
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; at != end; ++at) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<std::uint32_t>(*at)) & 255];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return by_thirds(bytes, before);
#endif
  return crc32c_by_table(bytes, before);
}

// CRC(AB) = CRC(A) x^(8 |B|) + CRC(B): the ones before and after cancel.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  std::uint32_t shift = one, power = x_to_8;
  for (; second_bytes != 0; second_bytes >>= 1, power = product(power, power))
    if (second_bytes & 1) shift = product(shift, power);
  return product(first, shift) ^ second;
}

}  // namespace nemocube

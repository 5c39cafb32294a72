#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4): polynomial 0x1EDC6F41, bits reflected, all ones before and
/// after. Detects every error within 32 neighbouring bits, and any other error with probability 1 - 2^-32.
namespace nemocube {

/// Continues a CRC: `before` is the CRC of the bytes before `bytes`, 0 when there are none.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The CRC of A followed by B, from the CRC of A, the CRC of B and the length of B. Several writers of one
/// file can so combine their CRCs. Takes O(log second_bytes) operations.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

/// crc32c() without the processor's CRC instruction, about a quarter as fast. Declared here for its test.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace nemocube

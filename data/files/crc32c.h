#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4): polynomial 0x1EDC6F41, bits reflected, all ones before and
/// after. Finds every damage of up to 32 neighbouring bits, and any other with probability 1 - 2^-32.
namespace nemocube {

/// The CRC of the bytes that gave `before`, followed by `bytes`. Starts with before = 0, the CRC of nothing.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The CRC of A followed by B, from the CRCs of A and of B and the length of B: what several writers of one
/// file know between them. Takes O(log second_bytes) operations.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

/// crc32c() without the processor's instruction, about a quarter as fast. Public for its test.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace nemocube

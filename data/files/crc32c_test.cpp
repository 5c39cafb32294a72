#include "data/files/crc32c.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace nemocube;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// The definition, bit by bit.
std::uint32_t by_definition(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    crc ^= static_cast<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  return ~crc;
}

std::string noise(std::size_t size) {
  std::string text(size, '\0');
  std::uint64_t state = 1;
  for (char& c : text)
    c = static_cast<char>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
  return text;
}

}  // namespace

TEST_CASE("crc32c: the vectors of RFC 3720 and the check value") {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  falling.assign(rising.rbegin(), rising.rend());
  const std::vector<std::pair<std::string, std::uint32_t>> known{{"", 0},
                                                                 {"123456789", 0xE3069283},
                                                                 {std::string(32, '\0'), 0x8A9136AA},
                                                                 {std::string(32, '\xff'), 0x62A8AB43},
                                                                 {rising, 0x46DD794E},
                                                                 {falling, 0x113FDB5C}};
  for (const auto& [text, want] : known) {
    CHECK(crc32c(bytes_of(text)) == want);
    CHECK(crc32c_by_table(bytes_of(text)) == want);
  }
}

TEST_CASE("crc32c: long texts, of which the instruction forms three sums at once") {
  const std::string text = noise(3 * 16384 + 100);
  for (const std::size_t size : {3 * 16384 - 1, 3 * 16384, 3 * 16384 + 7, 3 * 16384 + 24, 3 * 16384 + 100})
    for (const std::size_t begin : {0, 1, 5}) {
      const auto all = bytes_of(text).first(size).subspan(begin);
      const std::uint32_t want = by_definition(all);
      CHECK(crc32c(all) == want);
      CHECK(crc32c(all.subspan(11), crc32c(all.first(11))) == want);
    }
}

TEST_CASE("crc32c: any length, in any pieces, by instruction and by table") {
  const std::string text = noise(300);
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const auto all = bytes_of(text).first(size);
    const std::uint32_t want = by_definition(all);
    CHECK(crc32c(all) == want);
    CHECK(crc32c_by_table(all) == want);
    const auto head = all.first(size / 3), tail = all.subspan(size / 3);
    CHECK(crc32c(tail, crc32c(head)) == want);
    CHECK(crc32c_by_table(tail, crc32c_by_table(head)) == want);
  }
}

TEST_CASE("crc32c: parts combine to the CRC of the whole") {
  const std::string text = noise(5000);
  const auto all = bytes_of(text);
  const std::uint32_t want = crc32c(all);
  for (const std::size_t cut : {0, 1, 7, 8, 255, 256, 2500, 4999, 5000})
    CHECK(crc32c_combine(crc32c(all.first(cut)), crc32c(all.subspan(cut)), 5000 - cut) == want);
  // Several parts, from the left and from the right.
  const auto a = all.first(1000), b = all.subspan(1000, 3), c = all.subspan(1003);
  const std::uint32_t ab = crc32c_combine(crc32c(a), crc32c(b), b.size());
  const std::uint32_t bc = crc32c_combine(crc32c(b), crc32c(c), c.size());
  CHECK(crc32c_combine(ab, crc32c(c), c.size()) == want);
  CHECK(crc32c_combine(crc32c(a), bc, b.size() + c.size()) == want);
  // Lengths of more than 32 bits: 2^40 zero bytes, doubled one by one.
  const std::byte zero{};
  std::uint32_t zeros = crc32c({&zero, 1});
  for (int i = 0; i < 40; ++i) zeros = crc32c_combine(zeros, zeros, std::uint64_t{1} << i);
  const std::uint32_t first = crc32c(a);
  std::uint32_t stepwise = first;
  for (int i = 0; i < 16; ++i) {
    std::uint32_t part = crc32c({&zero, 1});
    for (int k = 0; k < 36; ++k) part = crc32c_combine(part, part, std::uint64_t{1} << k);
    stepwise = crc32c_combine(stepwise, part, std::uint64_t{1} << 36);
  }
  CHECK(crc32c_combine(first, zeros, std::uint64_t{1} << 40) == stepwise);
}

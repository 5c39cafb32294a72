#include "ptx/fatbin.h"

#include <doctest/doctest.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace emulator::ptx {
namespace {

using Bytes = std::string;

template <typename T>
void put(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// One entry; `payload` as stored.
Bytes entry(std::uint16_t kind, std::uint32_t architecture, std::uint64_t flags, Bytes payload,
            std::uint32_t header_bytes = 64, std::uint64_t plain_bytes = 0) {
  const auto compressed = static_cast<std::uint32_t>(plain_bytes == 0 ? 0 : payload.size());
  payload.resize((payload.size() + 7) / 8 * 8, '\0');
  Bytes header(header_bytes, '\0');
  put(header, 0, kind);
  put(header, 2, std::uint16_t{0x0101});
  put(header, 4, header_bytes);
  put(header, 8, std::uint64_t{payload.size()});
  put(header, 16, compressed);
  put(header, 24, std::uint16_t{0});
  put(header, 26, std::uint16_t{9});
  put(header, 28, architecture);
  put(header, 40, flags);
  put(header, 56, plain_bytes);
  return header + payload;
}

Bytes plain(std::uint32_t architecture, const std::string& text, std::uint64_t flags = 0x11) {
  return entry(1, architecture, flags, "\n\n" + text + Bytes(3, '\0'));
}

Bytes zstd(std::uint32_t architecture, const std::string& text, std::uint32_t header_bytes = 112) {
  const std::string ended = text + '\0';
  Bytes packed(ZSTD_compressBound(ended.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), ended.data(), ended.size(), 3));
  return entry(1, architecture, 0x8011, packed, header_bytes, ended.size());
}

Bytes fatbin(const Bytes& entries) {
  Bytes header(16, '\0');
  put(header, 0, 0xba55ed50u);
  put(header, 4, std::uint16_t{1});
  put(header, 6, std::uint16_t{16});
  put(header, 8, std::uint64_t{entries.size()});
  return header + entries;
}

struct Wrapper {
  std::uint32_t magic = 0x466243b1, version = 1;
  const void* fatbin = nullptr;
  const void* const* linked = nullptr;
};

std::vector<std::vector<PtxText>> read(const Bytes& fatbin) {
  const Wrapper wrapper{.fatbin = fatbin.data()};
  return ptx_of(&wrapper);
}

TEST_CASE("plain and compressed PTX of a unit") {
  const auto units = read(fatbin(entry(2, 90, 0x11, "cubin!!!") + plain(90, "plain", 0x100011) +
                                 zstd(80, "packed") + zstd(121, "too new") + plain(75, "old")));
  REQUIRE(units.size() == 1);
  REQUIRE(units[0].size() == 3);
  CHECK(units[0][0].architecture == 90);
  CHECK(units[0][0].exact);
  CHECK(units[0][0].text == "\n\nplain");
  CHECK(units[0][1].architecture == 80);
  CHECK_FALSE(units[0][1].exact);
  CHECK(units[0][1].text == "packed");
  CHECK(units[0][2].text == "\n\nold");
}

TEST_CASE("the units of a linked program") {
  const Bytes own = fatbin(entry(2, 90, 0x11, "linked!!")), first = fatbin(plain(90, "a")),
              second = fatbin(plain(90, "b") + plain(80, "c")), runtime = fatbin(zstd(121, "cudadevrt"));
  const void* linked[] = {first.data(), second.data(), runtime.data(), nullptr};
  const Wrapper wrapper{.version = 2, .fatbin = own.data(), .linked = linked};
  const auto units = ptx_of(&wrapper);
  REQUIRE(units.size() == 3);
  REQUIRE(units[0].size() == 1);
  CHECK(units[0][0].text == "\n\na");
  CHECK(units[1].size() == 2);
  CHECK(units[2].empty());
}

TEST_CASE("an empty fat binary") {
  const auto units = read(fatbin(""));
  REQUIRE(units.size() == 1);
  CHECK(units[0].empty());
}

TEST_CASE("the PTX for a device of compute capability 9.0") {
  const auto chosen = [](std::vector<PtxText> texts) {
    const PtxText* text = choose(texts);
    return text == nullptr ? "none" : text->text;
  };
  CHECK(chosen({}) == "none");
  CHECK(chosen({{100, false, "100"}}) == "none");
  CHECK(chosen({{80, false, "80"}, {90, false, "90"}, {75, false, "75"}, {100, false, "100"}}) == "90");
  CHECK(chosen({{90, false, "90"}, {90, true, "90a"}}) == "90a");
  CHECK(chosen({{90, true, "90a"}, {90, false, "90"}}) == "90a");
  CHECK(chosen({{80, false, "80"}, {89, true, "89a"}}) == "80");
  CHECK(chosen({{100, true, "100a"}}) == "none");
}

TEST_CASE("damaged and unknown structures") {
  const Bytes good = fatbin(plain(90, "text") + zstd(90, "packed", 64));
  CHECK(read(good).at(0).size() == 2);
  const auto broken = [&](std::size_t at, auto value) {
    Bytes bytes = good;
    put(bytes, at, value);
    return bytes;
  };
  const std::size_t second = 16 + plain(90, "text").size();
  CHECK_THROWS_AS(read(broken(0, 0xdeadbeefu)), std::runtime_error);
  CHECK_THROWS_AS(read(broken(4, std::uint16_t{2})), std::runtime_error);
  CHECK_THROWS_AS(read(broken(6, std::uint16_t{8})), std::runtime_error);
  CHECK_THROWS_AS(read(broken(8, std::uint64_t{good.size() - 24})), std::runtime_error);
  CHECK_THROWS_AS(read(broken(20, 8u)), std::runtime_error);
  CHECK_THROWS_AS(read(broken(20, 0xffffffffu)), std::runtime_error);
  CHECK_THROWS_AS(read(broken(24, std::uint64_t{0xfffffffffffffff0})), std::runtime_error);
  CHECK_THROWS_AS(read(broken(second + 16, 0xffffu)), std::runtime_error);
  CHECK_THROWS_AS(read(broken(second + 56, std::uint64_t{1} << 60)), std::runtime_error);
  CHECK_THROWS_AS(read(broken(second + 64, 0u)), std::runtime_error);           // no zstd frame
  CHECK_THROWS_AS(read(broken(second + 69, 0xffffffffu)), std::runtime_error);  // its contents
  Wrapper wrapper{.magic = 1, .fatbin = good.data()};
  CHECK_THROWS_AS(ptx_of(&wrapper), std::runtime_error);
  wrapper = {.version = 3, .fatbin = good.data()};
  CHECK_THROWS_AS(ptx_of(&wrapper), std::runtime_error);
}

}  // namespace
}  // namespace emulator::ptx

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/lane_kernel.h"
#include "tests/matrix_elements.h"

namespace emulator::test {
namespace {

std::mt19937 generator(5);

// Shared memory of 128 rows of 16 bytes; lane l holds bytes 64 l to 64 l + 63 in %r10 to %r25.
const std::string tile = ".shared .align 16 .b8 tile[2048];";
constexpr std::size_t words_of_lane = 16, first_word = 10;

/// Statements that fill the tile from %r10 ..., with %r95 = address of the tile, %r96 = this lane's part.
std::string fill() {
  std::string text = "mov.u32 %r95, tile;\nmad.lo.u32 %r96, %t, 64, %r95;\n";
  for (std::size_t w = 0; w < words_of_lane; ++w)
    text += "st.shared.u32 [%r96+" + std::to_string(4 * w) + "], %r" + std::to_string(first_word + w) + ";\n";
  return text + "bar.sync 0;\n";
}

/// Rows r0 to r9 (some unused), then the words of the tile.
struct Tile {
  std::vector<LaneValues> words{words_of_lane, LaneValues(32)};
  Tile() {
    for (LaneValues& row : words)
      for (std::uint32_t& w : row) w = static_cast<std::uint32_t>(generator());
  }
  std::uint16_t half(std::uint32_t byte) const {
    const std::uint32_t word = words[byte % 64 / 4][byte / 64];
    return static_cast<std::uint16_t>(byte % 4 ? word >> 16 : word);
  }
  std::vector<LaneValues> inputs(std::vector<LaneValues> first) const {
    first.resize(first_word, LaneValues(32));
    first.insert(first.end(), words.begin(), words.end());
    return first;
  }
};

/// 32 different row numbers of the tile.
std::vector<std::uint32_t> random_rows() {
  std::vector<std::uint32_t> rows(128);
  std::iota(rows.begin(), rows.end(), 0u);
  std::shuffle(rows.begin(), rows.end(), generator);
  rows.resize(32);
  return rows;
}

std::string registers(int first, int count) {
  std::string text = "{";
  for (int r = 0; r < count; ++r) text += (r ? ", %r" : "%r") + std::to_string(first + r);
  return text + "}";
}

/// The half of lane l in register i: PTX ISA 9.7.14.5.15, figure 104, and its transpose.
struct Cell {
  int row, column;
};
Cell cell_of(int lane, int half, bool transposed) {
  const int g = lane / 4, t = lane % 4;
  return transposed ? Cell{2 * t + half, g} : Cell{g, 2 * t + half};
}

const std::string address_forms[] = {
    "add.u32 %r97, %r95, %r0;\n|.shared|[%r97]",
    "add.u32 %r97, %r95, %r0;\nsub.u32 %r97, %r97, 32;\n|.shared::cta|[%r97+32]",
    "add.u32 %r97, %r95, %r0;\ncvt.u64.u32 %rd97, %r97;\n|.shared|[%rd97]",
    "add.u32 %r97, %r95, %r0;\ncvt.u64.u32 %rd97, %r97;\ncvta.shared.u64 %rd97, %rd97;\n||[%rd97]",
};
struct AddressForm {
  std::string prepare, space, operand;
  explicit AddressForm(const std::string& form) {
    const std::size_t a = form.find('|'), b = form.find('|', a + 1);
    prepare = form.substr(0, a);
    space = form.substr(a + 1, b - a - 1);
    operand = form.substr(b + 1);
  }
};

TEST_CASE("ldmatrix: every count, transposed or not, every form of address") {
  for (const int count : {1, 2, 4})
    for (const bool transposed : {false, true})
      for (const std::string& form : address_forms) {
        const Tile data;
        const std::vector<std::uint32_t> rows = random_rows();
        LaneValues offsets(32);
        // Addresses of lanes beyond the matrices must not matter.
        for (std::uint32_t lane = 0; lane < 32; ++lane)
          offsets[lane] = lane < static_cast<std::uint32_t>(8 * count) ? rows[lane] * 16 : 0x123457;
        const AddressForm address(form);
        const std::string text = fill() + address.prepare + "ldmatrix.sync.aligned.m8n8.x" +
                                 std::to_string(count) + (transposed ? ".trans" : "") + address.space +
                                 ".b16 " + registers(50, count) + ", " + address.operand + ";\n";
        const LaneOutcome got = run_lanes(text, data.inputs({offsets}), count, 32, tile);
        CHECK(got.error == 0);
        CHECK(got.reports.empty());
        for (int i = 0; i < count; ++i)
          for (int lane = 0; lane < 32; ++lane) {
            std::uint32_t want = 0;
            for (int half = 0; half < 2; ++half) {
              const Cell cell = cell_of(lane, half, transposed);
              const std::uint32_t row = rows[static_cast<std::size_t>(8 * i + cell.row)];
              want |= static_cast<std::uint32_t>(
                          data.half(row * 16 + static_cast<std::uint32_t>(cell.column) * 2))
                      << (16 * half);
            }
            CHECK(got.rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(lane)] == want);
          }
      }
}

TEST_CASE("stmatrix: every count, transposed or not, every form of address") {
  for (const int count : {1, 2, 4})
    for (const bool transposed : {false, true})
      for (const std::string& form : address_forms) {
        const Tile data;
        const std::vector<std::uint32_t> rows = random_rows();
        LaneValues offsets(32);
        for (std::uint32_t lane = 0; lane < 32; ++lane)
          offsets[lane] = lane < static_cast<std::uint32_t>(8 * count) ? rows[lane] * 16 : 0x123457;
        std::vector<LaneValues> sources{offsets};
        for (int i = 0; i < count; ++i) {
          sources.emplace_back(32);
          for (std::uint32_t& v : sources.back()) v = static_cast<std::uint32_t>(generator());
        }
        const AddressForm address(form);
        std::string text = fill() + address.prepare + "stmatrix.sync.aligned.m8n8.x" + std::to_string(count) +
                           (transposed ? ".trans" : "") + address.space + ".b16 " + address.operand + ", " +
                           registers(1, count) + ";\nbar.sync 0;\n";
        for (std::size_t w = 0; w < words_of_lane; ++w)
          text += "ld.shared.u32 %r" + std::to_string(50 + w) + ", [%r96+" + std::to_string(4 * w) + "];\n";
        const LaneOutcome got = run_lanes(text, data.inputs(sources), words_of_lane, 32, tile);
        CHECK(got.error == 0);
        CHECK(got.reports.empty());
        Tile want = data;
        for (int i = 0; i < count; ++i)
          for (int lane = 0; lane < 32; ++lane)
            for (int half = 0; half < 2; ++half) {
              const Cell cell = cell_of(lane, half, transposed);
              const std::uint32_t byte = rows[static_cast<std::size_t>(8 * i + cell.row)] * 16 +
                                         static_cast<std::uint32_t>(cell.column) * 2;
              std::uint32_t& word = want.words[byte % 64 / 4][byte / 64];
              const std::uint32_t value =
                  sources[static_cast<std::size_t>(1 + i)][static_cast<std::size_t>(lane)] >> (16 * half) &
                  0xffff;
              word = byte % 4 ? (word & 0xffff) | value << 16 : (word & 0xffff0000) | value;
            }
        CHECK(got.rows == want.words);
      }
}

TEST_CASE("movmatrix transposes") {
  LaneValues a(32);
  for (std::uint32_t& v : a) v = static_cast<std::uint32_t>(generator());
  const LaneOutcome got = run_lanes("movmatrix.sync.aligned.m8n8.trans.b16 %r50, %r0;", {a}, 1);
  CHECK(got.error == 0);
  const auto element = [](const LaneValues& fragment, int row, int column) {
    return static_cast<std::uint16_t>(fragment[static_cast<std::size_t>(row * 4 + column / 2)] >>
                                      (column % 2 * 16));
  };
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 8; ++column)
      CHECK(element(got.rows[0], row, column) == element(a, column, row));
}

TEST_CASE("ldmatrix feeds mma: tiles of 16x16 and 16x8 in shared memory") {
  // A at byte 0, row-major with 16 columns. B at byte 512: 16x8 row-major, or its transpose 8x16.
  for (const bool b_transposed_in_memory : {false, true}) {
    Tile data;
    double a[16][16], b[16][8];
    const auto set = [&](std::uint32_t byte, double x) {
      std::uint32_t& word = data.words[byte % 64 / 4][byte / 64];
      word = byte % 4 ? (word & 0xffff) | static_cast<std::uint32_t>(f16_bits(x)) << 16
                      : (word & 0xffff0000) | f16_bits(x);
    };
    for (std::uint32_t row = 0; row < 16; ++row)
      for (std::uint32_t k = 0; k < 16; ++k)
        set(row * 32 + k * 2, a[row][k] = static_cast<int>(generator() % 9) - 4);
    for (std::uint32_t k = 0; k < 16; ++k)
      for (std::uint32_t n = 0; n < 8; ++n)
        set(512 + (b_transposed_in_memory ? n * 32 + k * 2 : k * 16 + n * 2),
            b[k][n] = static_cast<int>(generator() % 9) - 4);
    LaneValues offset_a(32), offset_b(32);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      offset_a[lane] = lane % 16 * 32 + lane / 16 * 16;
      offset_b[lane] = 512 + (b_transposed_in_memory ? lane % 8 * 32 + lane / 8 % 2 * 16 : lane % 16 * 16);
    }
    const std::string text =
        fill() + "add.u32 %r0, %r0, %r95;\nadd.u32 %r1, %r1, %r95;\n" +
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r60, %r61, %r62, %r63}, [%r0];\n" +
        "ldmatrix.sync.aligned.m8n8.x2" + (b_transposed_in_memory ? "" : ".trans") +
        ".shared.b16 {%r64, %r65}, [%r1];\n" +
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r50, %r51, %r52, %r53}, "
        "{%r60, %r61, %r62, %r63}, {%r64, %r65}, {0f00000000, 0f00000000, 0f00000000, 0f00000000};\n";
    const LaneOutcome got = run_lanes(text, data.inputs({offset_a, offset_b}), 4, 32, tile);
    CHECK(got.error == 0);
    CHECK(got.reports.empty());
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double want = 0;
        for (int k = 0; k < 16; ++k) want += a[row][k] * b[k][column];
        CHECK(f32_value(got.rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(lane)]) == want);
      }
  }
}

TEST_CASE("ldmatrix: faults of addresses") {
  const Tile data;
  const std::string load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r50}, [%r97];\n";
  const auto with_offset = [&](std::uint32_t lane, std::uint32_t offset) {
    LaneValues offsets(32);
    offsets[lane] = offset;
    return run_lanes(fill() + "add.u32 %r97, %r95, %r0;\n" + load, data.inputs({offsets}), 1, 32, tile);
  };
  CHECK(with_offset(3, 8).error == 716);
  CHECK(with_offset(3, 4096).error == 700);
  CHECK(with_offset(9, 8).error == 0);
  CHECK(with_offset(3, 16).reports.empty());
  const LaneOutcome global = run_lanes("ldmatrix.sync.aligned.m8n8.x1.b16 {%r50}, [%p0];\n", {}, 1);
  CHECK(global.error == 717);
  CHECK(global.reports == std::vector<std::string>{"wrong-space"});
}

}  // namespace
}  // namespace emulator::test

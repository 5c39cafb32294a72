#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>

#include "tests/harness.h"
#include "tests/lane_kernel.h"
#include "tests/matrix_elements.h"

namespace emulator::test {
namespace {

std::mt19937 generator(11);

struct Cell {
  int row, column;
};
/// Row and column of element i of a lane (g = lane / 4, t = lane % 4), as the figures of PTX ISA 9.7.14.5 give them.
using Layout = std::function<Cell(int g, int t, int i)>;

using Matrix = std::vector<double>;

struct Kind {
  std::string shape;
  int m, n, k;
  Element a, b, c;
  Layout in_a, in_b, in_c;
  int a_count, b_count, c_count;  ///< elements of a lane
};

Layout accumulator = [](int g, int t, int i) { return Cell{i < 2 ? g : g + 8, t * 2 + (i & 1)}; };

/// Every shape with the layouts written out one by one.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const Element& type : {f16, bf16}) {
    const Layout k16_a = [](int g, int t, int i) {
      return Cell{i < 2 || (4 <= i && i < 6) ? g : g + 8, i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8};
    };
    const Layout k16_b = [](int g, int t, int i) {
      return Cell{i < 2 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8, g};
    };
    const Layout k8_a = [](int g, int t, int i) { return Cell{i < 2 ? g : g + 8, t * 2 + (i & 1)}; };
    const Layout k8_b = [](int g, int t, int i) { return Cell{t * 2 + i, g}; };
    all.push_back({"m16n8k16", 16, 8, 16, type, type, f32, k16_a, k16_b, accumulator, 8, 4, 4});
    all.push_back({"m16n8k8", 16, 8, 8, type, type, f32, k8_a, k8_b, accumulator, 4, 2, 4});
    if (type.type == "f16") {
      all.push_back({"m16n8k16", 16, 8, 16, type, type, f16, k16_a, k16_b, accumulator, 8, 4, 4});
      all.push_back({"m16n8k8", 16, 8, 8, type, type, f16, k8_a, k8_b, accumulator, 4, 2, 4});
    }
  }
  const Layout tf32_k8_a = [](int g, int t, int i) {
    return Cell{i == 0 || i == 2 ? g : g + 8, i < 2 ? t : t + 4};
  };
  const Layout tf32_k8_b = [](int g, int t, int i) { return Cell{i == 0 ? t : t + 4, g}; };
  const Layout k4_a = [](int g, int t, int i) { return Cell{i == 0 ? g : g + 8, t}; };
  const Layout k4_b = [](int g, int t, int) { return Cell{t, g}; };
  all.push_back({"m16n8k8", 16, 8, 8, tf32, tf32, f32, tf32_k8_a, tf32_k8_b, accumulator, 4, 2, 4});
  all.push_back({"m16n8k4", 16, 8, 4, tf32, tf32, f32, k4_a, k4_b, accumulator, 2, 1, 4});

  all.push_back({"m8n8k4", 8, 8, 4, f64, f64, f64,
                 [](int g, int t, int) {
                   return Cell{g, t};
                 },
                 k4_b,
                 [](int g, int t, int i) {
                   return Cell{g, t * 2 + i};
                 },
                 1, 1, 2});
  all.push_back({"m16n8k4", 16, 8, 4, f64, f64, f64, k4_a, k4_b, accumulator, 2, 1, 4});
  all.push_back({"m16n8k8", 16, 8, 8, f64, f64, f64, tf32_k8_a, tf32_k8_b, accumulator, 4, 2, 4});
  all.push_back({"m16n8k16", 16, 8, 16, f64, f64, f64,
                 [](int g, int t, int i) {
                   return Cell{i % 2 == 0 ? g : g + 8, i % 2 == 0 ? i * 2 + t : i * 2 - 2 + t};
                 },
                 [](int g, int t, int i) {
                   return Cell{t + i * 4, g};
                 },
                 accumulator, 8, 4, 4});

  const Layout k32_a = [](int g, int t, int i) {
    return Cell{i < 4 || (8 <= i && i < 12) ? g : g + 8, i < 8 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16};
  };
  const Layout k32_b = [](int g, int t, int i) {
    return Cell{i < 4 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16, g};
  };
  const Layout k16_a = [](int g, int t, int i) { return Cell{i < 4 ? g : g + 8, t * 4 + (i & 3)}; };
  const Layout k16_b = [](int g, int t, int i) { return Cell{t * 4 + i, g}; };
  for (const Element& a : {s8, u8})
    for (const Element& b : {s8, u8}) {
      all.push_back({"m8n8k16", 8, 8, 16, a, b, s32,
                     [](int g, int t, int i) {
                       return Cell{g, t * 4 + i};
                     },
                     k16_b,
                     [](int g, int t, int i) {
                       return Cell{g, t * 2 + i};
                     },
                     4, 4, 2});
      all.push_back({"m16n8k16", 16, 8, 16, a, b, s32, k16_a, k16_b, accumulator, 8, 4, 4});
      all.push_back({"m16n8k32", 16, 8, 32, a, b, s32, k32_a, k32_b, accumulator, 16, 8, 4});
    }
  for (const Element& a : {e4m3, e5m2})
    for (const Element& b : {e4m3, e5m2})
      for (const Element& c : {f16, f32}) {
        all.push_back({"m16n8k16", 16, 8, 16, a, b, c, k16_a, k16_b, accumulator, 8, 4, 4});
        all.push_back({"m16n8k32", 16, 8, 32, a, b, c, k32_a, k32_b, accumulator, 16, 8, 4});
      }
  return all;
}

/// Registers of 32 bits (two for each f64): element i of a lane lies in bits i * width and up.
std::vector<LaneValues> pack(const Matrix& matrix, int columns, const Element& element, const Layout& layout,
                             int count) {
  std::vector<LaneValues> rows(static_cast<std::size_t>(count * element.bits / 32), LaneValues(32));
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < count; ++i) {
      const Cell cell = layout(lane / 4, lane % 4, i);
      std::uint64_t bits = element.encode(matrix[static_cast<std::size_t>(cell.row * columns + cell.column)]);
      if (element.bits < 64) bits &= (std::uint64_t{1} << element.bits) - 1;
      for (int at = i * element.bits; at < (i + 1) * element.bits; at += 32, bits >>= 32)
        rows[static_cast<std::size_t>(at / 32)][static_cast<std::size_t>(lane)] |=
            static_cast<std::uint32_t>(bits << (at % 32));
    }
  return rows;
}

Matrix unpack(const std::vector<LaneValues>& rows, int m, int n, const Element& element, const Layout& layout,
              int count) {
  Matrix matrix(static_cast<std::size_t>(m * n), std::nan(""));
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < count; ++i) {
      std::uint64_t bits = 0;
      for (int at = i * element.bits, shift = 0; at < (i + 1) * element.bits; at += 32, shift += 32)
        bits |= std::uint64_t{rows[static_cast<std::size_t>(at / 32)][static_cast<std::size_t>(lane)] >>
                              (at % 32)}
                << shift;
      if (element.bits < 64) bits &= (std::uint64_t{1} << element.bits) - 1;
      const Cell cell = layout(lane / 4, lane % 4, i);
      matrix[static_cast<std::size_t>(cell.row * n + cell.column)] = element.decode(bits);
    }
  return matrix;
}

/// "{%r0, %r1}"; for f64 the registers are moved to %fd first.
std::string vector_of(const char* prefix, int first, int count) {
  std::string text = "{";
  for (int r = 0; r < count; ++r) text += (r ? ", " : "") + std::string(prefix) + std::to_string(first + r);
  return text + "}";
}

/// The PTX of one mma whose operands lie in %r0 and up and whose result goes to %r50 and up.
std::string mma_text(const Kind& kind, const std::string& extra) {
  const bool wide = kind.a.bits == 64;
  const int a = kind.a_count * kind.a.bits / (wide ? 64 : 32),
            b = kind.b_count * kind.b.bits / (wide ? 64 : 32),
            c = kind.c_count * kind.c.bits / (wide ? 64 : 32);
  const char* prefix = wide ? "%fd" : "%r";
  std::string text;
  if (wide)
    for (int r = 0; r < a + b + c; ++r)
      text += "mov.b64 %fd" + std::to_string(r) + ", {%r" + std::to_string(2 * r) + ", %r" +
              std::to_string(2 * r + 1) + "};\n";
  text += "mma.sync.aligned." + kind.shape + ".row.col" + extra + "." + kind.c.type + "." + kind.a.type +
          "." + kind.b.type + "." + kind.c.type + " " + vector_of(prefix, 50, c) + ", " +
          vector_of(prefix, 0, a) + ", " + vector_of(prefix, a, b) + ", " + vector_of(prefix, a + b, c) +
          ";\n";
  if (wide)
    for (int r = 0; r < c; ++r)
      text += "mov.b64 {%r" + std::to_string(50 + 2 * r) + ", %r" + std::to_string(51 + 2 * r) + "}, %fd" +
              std::to_string(50 + r) + ";\n";
  return text;
}

Matrix product(const Kind& kind, const Matrix& a, const Matrix& b, const Matrix& c) {
  Matrix d = c;
  for (int row = 0; row < kind.m; ++row)
    for (int column = 0; column < kind.n; ++column)
      for (int k = 0; k < kind.k; ++k)
        d[static_cast<std::size_t>(row * kind.n + column)] +=
            a[static_cast<std::size_t>(row * kind.k + k)] * b[static_cast<std::size_t>(k * kind.n + column)];
  return d;
}

Matrix run_mma(const Kind& kind, const Matrix& a, const Matrix& b, const Matrix& c,
               const std::string& extra = "") {
  std::vector<LaneValues> inputs = pack(a, kind.k, kind.a, kind.in_a, kind.a_count);
  for (const LaneValues& row : pack(b, kind.n, kind.b, kind.in_b, kind.b_count)) inputs.push_back(row);
  for (const LaneValues& row : pack(c, kind.n, kind.c, kind.in_c, kind.c_count)) inputs.push_back(row);
  const LaneOutcome got = run_lanes(mma_text(kind, extra), inputs, kind.c_count * kind.c.bits / 32);
  CHECK(got.error == 0);
  CHECK(got.reports.empty());
  return unpack(got.rows, kind.m, kind.n, kind.c, kind.in_c, kind.c_count);
}

Matrix random_matrix(int size, const std::function<double()>& number) {
  Matrix matrix(static_cast<std::size_t>(size));
  for (double& x : matrix) x = number();
  return matrix;
}

TEST_CASE("mma: every fragment layout against plain products") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.shape);
    CAPTURE(kind.a.type);
    CAPTURE(kind.b.type);
    CAPTURE(kind.c.type);
    // Small integers: all sums are exact in every type.
    const int low = kind.a.type == "u8" || kind.b.type == "u8" ? 0 : -3;
    const auto number = [&] { return static_cast<double>(low + static_cast<int>(generator() % 7)); };
    const Matrix a = random_matrix(kind.m * kind.k, number), b = random_matrix(kind.k * kind.n, number),
                 c = random_matrix(kind.m * kind.n, number);
    CHECK(run_mma(kind, a, b, c) == product(kind, a, b, c));
  }
}

const Kind& find(const std::vector<Kind>& all, std::string_view shape, std::string_view a,
                 std::string_view c) {
  for (const Kind& kind : all)
    if (kind.shape == shape && kind.a.type == a && kind.b.type == a && kind.c.type == c) return kind;
  throw std::runtime_error("no such mma");
}

TEST_CASE("mma: sums are rounded once") {
  const std::vector<Kind> all = kinds();
  // f16 numbers of 11 bits between 1 and 4: sums of their products are exact in double.
  const auto number = [] {
    return (1024 + static_cast<double>(generator() % 1024)) / 1024 * (generator() % 2 ? 1 : -2);
  };
  for (const std::string shape : {"m16n8k8", "m16n8k16"})
    for (const std::string type : {"f16", "f32"}) {
      const Kind& kind = find(all, shape, "f16", type);
      const Matrix a = random_matrix(kind.m * kind.k, number), b = random_matrix(kind.k * kind.n, number),
                   c = random_matrix(kind.m * kind.n, number);
      const Matrix got = run_mma(kind, a, b, c), exact = product(kind, a, b, c);
      for (std::size_t e = 0; e < got.size(); ++e) {
        if (type == "f32") {
          CHECK(got[e] == static_cast<float>(exact[e]));
        } else {
          // Nearest f16: no farther than half the distance of its neighbours.
          int exponent = 0;
          std::frexp(exact[e], &exponent);
          CHECK(std::fabs(got[e] - exact[e]) <= std::ldexp(0.5, std::max(exponent, -13) - 11));
        }
      }
    }
  // A tie in f16 that a first rounding to f32 would break the wrong way: 2049 + 2^-14 lies above the tie of 2048
  // and 2050.
  const Kind& kind = find(all, "m16n8k8", "f16", "f16");
  Matrix a(16 * 8), b(8 * 8), c(16 * 8, 2048);
  for (int column = 0; column < 8; ++column)
    b[static_cast<std::size_t>(column)] = 1, b[static_cast<std::size_t>(8 + column)] = std::ldexp(1, -14);
  for (int row = 0; row < 16; ++row)
    a[static_cast<std::size_t>(row * 8)] = 1, a[static_cast<std::size_t>(row * 8 + 1)] = 1;
  CHECK(run_mma(kind, a, b, c)[5] == 2050);
  for (int row = 0; row < 16; ++row) a[static_cast<std::size_t>(row * 8 + 1)] = 0;
  CHECK(run_mma(kind, a, b, c)[5] == 2048);
}

TEST_CASE("mma: tf32 ignores the lower 13 bits") {
  const std::vector<Kind> all = kinds();
  const auto number = [] { return static_cast<double>(f32_value(0x3f800000u | (generator() & 0x807fffff))); };
  for (const std::string shape : {"m16n8k4", "m16n8k8"}) {
    const Kind& kind = find(all, shape, "tf32", "f32");
    Matrix a = random_matrix(kind.m * kind.k, number), b = random_matrix(kind.k * kind.n, number);
    const Matrix c = random_matrix(kind.m * kind.n, number), got = run_mma(kind, a, b, c);
    for (Matrix* matrix : {&a, &b})
      for (double& x : *matrix) x = f32_value(f32_bits(x) & 0xffffe000);
    const Matrix exact = product(kind, a, b, c);
    for (std::size_t e = 0; e < got.size(); ++e) CHECK(got[e] == static_cast<float>(exact[e]));
  }
}

TEST_CASE("mma: f64 is a chain of fused multiply-adds in the order of k") {
  std::uniform_real_distribution<double> real(-1, 1);
  for (const Kind& kind : kinds()) {
    if (kind.a.type != "f64") continue;
    const auto number = [&] { return real(generator); };
    const Matrix a = random_matrix(kind.m * kind.k, number), b = random_matrix(kind.k * kind.n, number),
                 c = random_matrix(kind.m * kind.n, number);
    Matrix want = c;
    for (int row = 0; row < kind.m; ++row)
      for (int column = 0; column < kind.n; ++column)
        for (int k = 0; k < kind.k; ++k) {
          double& sum = want[static_cast<std::size_t>(row * kind.n + column)];
          sum = std::fma(a[static_cast<std::size_t>(row * kind.k + k)],
                         b[static_cast<std::size_t>(k * kind.n + column)], sum);
        }
    CHECK(run_mma(kind, a, b, c, "") == want);
  }
}

TEST_CASE("mma: integer sums wrap, or stop at the ends of the range with .satfinite") {
  const std::vector<Kind> all = kinds();
  for (const std::string shape : {"m8n8k16", "m16n8k16", "m16n8k32"}) {
    const Kind& kind = find(all, shape, "s8", "s32");
    const Matrix a(static_cast<std::size_t>(kind.m * kind.k), -128),
        b(static_cast<std::size_t>(kind.k * kind.n), -128),
        c(static_cast<std::size_t>(kind.m * kind.n), 2147483647.0 - 100);
    const double exact = 2147483647.0 - 100 + kind.k * 128.0 * 128.0;
    CHECK(run_mma(kind, a, b, c)[3] == exact - 4294967296.0);
    CHECK(run_mma(kind, a, b, c, ".satfinite")[3] == 2147483647.0);
  }
}

TEST_CASE("mma: special values of f16") {
  const std::vector<Kind> all = kinds();
  const Kind& kind = find(all, "m16n8k8", "f16", "f32");
  // Rows 0 to 3 of A begin with infinity, infinity beside minus infinity, NaN, the smallest subnormal number.
  std::vector<LaneValues> inputs(2 + 1 + 4, LaneValues(32));
  const auto set_a = [&](int row, std::uint32_t first, std::uint32_t second) {
    inputs[0][static_cast<std::size_t>(row * 4)] = first | second << 16;  // elements (row, 0) and (row, 1)
  };
  set_a(0, 0x7c00, 0);
  set_a(1, 0x7c00, 0xfc00);
  set_a(2, 0x7e01, 0);
  set_a(3, 0x0001, 0x8001);
  for (std::size_t column = 0; column < 8; ++column)
    inputs[2][column * 4] = 0x3c00 | 0x3800 << 16;  // (0, c) = 1, (1, c) = 0.5
  const LaneOutcome got = run_lanes(mma_text(kind, ""), inputs, 4);
  const auto bits = [&](int row) { return got.rows[0][static_cast<std::size_t>(row * 4)]; };
  CHECK(bits(0) == 0x7f800000);
  CHECK(bits(1) == 0x7fffffff);
  CHECK(bits(2) == 0x7fffffff);
  CHECK(bits(3) == f32_bits(std::ldexp(1, -25)));
  CHECK(bits(4) == 0);
}

TEST_CASE("mma: 8-bit floats over their whole range") {
  const std::vector<Kind> all = kinds();
  for (const std::string type : {"e4m3", "e5m2"}) {
    const Kind& kind = find(all, "m16n8k16", type, "f32");
    // Column 0 of A has all 16 numbers of one exponent or sign after the other; B has 1 at (0, 0).
    for (int first = 0; first < 256; first += 16) {
      std::vector<LaneValues> inputs(2 + 1 + 4, LaneValues(32));
      for (int row = 0; row < 16; ++row)
        inputs[row < 8 ? 0 : 1][static_cast<std::size_t>(row % 8 * 4)] =
            static_cast<std::uint32_t>(first + row);
      inputs[2][0] = type == "e4m3" ? 0x38 : 0x3c;
      const LaneOutcome got = run_lanes(mma_text(kind, ""), inputs, 4);
      for (int row = 0; row < 16; ++row) {
        const int bits = first + row, sign = bits >> 7;
        const int mantissa_bits = type == "e4m3" ? 3 : 2, bias = type == "e4m3" ? 7 : 15;
        const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
        double want = exponent ? std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                               : std::ldexp(mantissa, 1 - bias - mantissa_bits);
        if (type == "e4m3" && (bits & 0x7f) == 0x7f) want = std::nan("");
        if (type == "e5m2" && exponent == 31) want = mantissa ? std::nan("") : INFINITY;
        const float result =
            std::bit_cast<float>(got.rows[row < 8 ? 0 : 2][static_cast<std::size_t>(row % 8 * 4)]);
        CAPTURE(bits);
        if (std::isnan(want)) {
          CHECK(std::isnan(result));
        } else {
          CHECK(result == (sign ? -want : want));
        }
      }
    }
  }
}

TEST_CASE("mma with exited lanes is reported") {
  const std::vector<Kind> all = kinds();
  const Kind& kind = find(all, "m16n8k8", "f16", "f32");
  const std::vector<LaneValues> inputs(7, LaneValues(32));
  const std::vector<std::string> reports =
      run_lanes("setp.gt.u32 %q0, %t, 29;\n@%q0 exit;\n" + mma_text(kind, ""), inputs, 4).reports;
  CHECK(reports == std::vector<std::string>{"partial-warp"});
}

TEST_CASE("mma that half of a warp executes is reported") {
  const std::vector<Kind> all = kinds();
  const Kind& kind = find(all, "m16n8k8", "f16", "f32");
  const std::vector<LaneValues> inputs(7, LaneValues(32));
  const LaneOutcome got = run_lanes("setp.gt.u32 %q0, %t, 15;\n@%q0 bra LATER;\n" + mma_text(kind, "") +
                                        "bra END;\nLATER:\n" + mma_text(kind, "") + "END:\n",
                                    inputs, 4);
  CHECK(got.error == 719);
  CHECK(got.reports == std::vector<std::string>{"divergent-warp-operation"});
}

}  // namespace
}  // namespace emulator::test

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/harness.h"
#include "tests/matrix_elements.h"

namespace emulator::test {
namespace {

std::mt19937 generator(3);

struct Kind {
  int m, n, k;
  Element factor, c, d;
  int a_registers, b_registers, c_registers, d_registers;
  std::string shape() const {
    return "m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k);
  }
};

/// The types and shapes of PTX ISA 9.7.14.4 for which sm_90 has fragments of whole bytes.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const auto& [m, n] : {std::pair{16, 16}, {32, 8}, {8, 32}}) {
    for (const Element& c : {f16, f32})
      for (const Element& d : {f16, f32})
        all.push_back({m, n, 16, f16, c, d, 8, 8, c.bits == 16 ? 4 : 8, d.bits == 16 ? 4 : 8});
    all.push_back({m, n, 16, bf16, f32, f32, m / 4, n / 4, 8, 8});
    all.push_back({m, n, 16, s8, s32, s32, m / 8, n / 8, 8, 8});
    all.push_back({m, n, 16, u8, s32, s32, m / 8, n / 8, 8, 8});
  }
  all.push_back({16, 16, 8, tf32, f32, f32, 4, 4, 8, 8});
  all.push_back({8, 8, 4, f64, f64, f64, 1, 1, 2, 2});
  return all;
}

/// A matrix in a buffer: row- or column-major, with `stride` elements from line to line.
struct Stored {
  int rows, columns;
  Element element;
  bool column_major;
  int stride;
  std::vector<double> values;  ///< row by row

  std::size_t bytes() const {
    return static_cast<std::size_t>((column_major ? columns : rows) * stride * element.bits / 8);
  }
  std::size_t offset(int row, int column) const {
    return static_cast<std::size_t>((column_major ? column * stride + row : row * stride + column) *
                                    element.bits / 8);
  }
  double& at(int row, int column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  double at(int row, int column) const { return values[static_cast<std::size_t>(row * columns + column)]; }

  std::vector<std::uint8_t> encoded() const {
    std::vector<std::uint8_t> out(bytes(), 0xee);
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column) {
        const std::uint64_t bits = element.encode(at(row, column));
        std::copy_n(reinterpret_cast<const std::uint8_t*>(&bits), element.bits / 8,
                    out.begin() + static_cast<std::ptrdiff_t>(offset(row, column)));
      }
    return out;
  }
  void decode(const std::vector<std::uint8_t>& in) {
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column) {
        std::uint64_t bits = 0;
        std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(offset(row, column)), element.bits / 8,
                    reinterpret_cast<std::uint8_t*>(&bits));
        at(row, column) = element.decode(bits);
      }
  }
};

enum class Where { global, shared, generic_global, generic_shared };

std::string registers(const Element& element, char name, int count) {
  std::string text = "{";
  for (int r = 0; r < count; ++r)
    text += (r ? ", %" : "%") + std::string(element.bits == 64 ? "d" : "") + name + std::to_string(r);
  return text + "}";
}

/// 8 KiB of shared memory for each matrix.
constexpr int part = 8192;
const std::string shared_memory = ".shared .align 32 .b8 parts[" + std::to_string(4 * part) + "];";

/// The operand ", stride" or nothing, and the address of matrix `index` (%p0 = a ... %p3 = d).
struct Place {
  std::string space, address, prepare;
};
Place place_of(Where where, int index) {
  const std::string n = std::to_string(index), r = std::to_string(60 + index),
                    offset = std::to_string(index * part);
  switch (where) {
    case Where::global:
      return {".global", "[%p" + n + "]", ""};
    case Where::generic_global:
      return {"", "[%p" + n + "]", ""};
    case Where::shared:
      return {".shared", "[%r" + r + "+" + offset + "]", "mov.u32 %r" + r + ", parts;\n"};
    default:
      return {"", "[%rd" + r + "+" + offset + "]",
              "mov.u64 %rd" + r + ", parts;\ncvta.shared.u64 %rd" + r + ", %rd" + r + ";\n"};
  }
}

/// A loop in which the warp copies `bytes` between the buffer of a matrix and its part of shared memory.
std::string copy(int index, std::size_t bytes, bool to_shared) {
  const std::string label = (to_shared ? "IN" : "OUT") + std::to_string(index);
  std::string text =
      "mov.u32 %r70, parts;\nshl.b32 %r71, %t, 2;\nadd.u32 %r70, %r70, %r71;\nadd.s64 %rd70, %p" +
      std::to_string(index) +
      ", %t64;\nadd.s64 %rd70, %rd70, %t64;\nadd.s64 %rd70, %rd70, %t64;\nadd.s64 %rd70, %rd70, %t64;\n" +
      label + ":\n";
  const std::string shared = "[%r70+" + std::to_string(index * part) + "]";
  text += to_shared ? "ld.global.u32 %r72, [%rd70];\nst.shared.u32 " + shared + ", %r72;\n"
                    : "ld.shared.u32 %r72, " + shared + ";\nst.global.u32 [%rd70], %r72;\n";
  return text +
         "add.u32 %r70, %r70, 128;\nadd.s64 %rd70, %rd70, 128;\nadd.u32 %r71, %r71, 128;\nsetp.lt.u32 %q0, "
         "%r71, " +
         std::to_string(bytes) + ";\n@%q0 bra " + label + ";\n";
}

struct Run {
  int error;
  std::vector<std::string> reports;
};

/// D = A B + C by wmma instructions. `before_mma`, `after_mma`: statements on the fragments (registers %a0.., %b0.., %c0.., %d0..;
/// "%da0" ... of f64). Writes d's values.
Run multiply(const Kind& kind, const Stored& a, const Stored& b, const Stored& c, Stored& d, Where where,
             bool strides, const std::string& before_mma = "", const std::string& after_mma = "") {
  const bool shared = where == Where::shared || where == Where::generic_shared;
  std::string text = ".reg .b32 %a<8>, %b<8>, %c<8>, %d<8>;\n.reg .b64 %da<8>, %db<8>, %dc<8>, %dd<8>;\n";
  const Stored* matrices[] = {&a, &b, &c, &d};
  Buffer buffers[] = {Buffer(a.bytes() + 128), Buffer(b.bytes() + 128), Buffer(c.bytes() + 128),
                      Buffer(d.bytes() + 128)};
  const std::vector<std::uint8_t> initial(128 + std::max({a.bytes(), b.bytes(), c.bytes(), d.bytes()}), 0x77);
  for (int index = 0; index < 4; ++index) {
    buffers[index].write(initial.data(), matrices[index]->bytes() + 128);
    if (index < 3) buffers[index].write(matrices[index]->encoded().data(), matrices[index]->bytes());
    if (shared) text += copy(index, matrices[index]->bytes(), true);
  }
  if (shared) text += "bar.sync 0;\n";
  const auto stride_of = [&](const Stored& matrix, int index) -> std::string {
    if (!strides) return "";
    if (index % 2) return ", " + std::to_string(matrix.stride);
    text += "mov.u32 %r" + std::to_string(80 + index) + ", " + std::to_string(matrix.stride) + ";\n";
    return ", %r" + std::to_string(80 + index);
  };
  const auto layout = [](const Stored& matrix) { return std::string(matrix.column_major ? ".col" : ".row"); };
  const int counts[] = {kind.a_registers, kind.b_registers, kind.c_registers, kind.d_registers};
  for (int index = 0; index < 4; ++index) {
    const Stored& matrix = *matrices[index];
    const char name = static_cast<char>('a' + index);
    const Place place = place_of(where, index);
    const std::string fragment = registers(matrix.element, name, counts[index]);
    text += place.prepare;
    if (index == 3) {
      const auto list = [&](int k) {
        return registers(matrices[k]->element, static_cast<char>('a' + k), counts[k]);
      };
      std::string types =
          "." + d.element.type + "." + a.element.type + "." + b.element.type + "." + c.element.type;
      if (a.element.type == "f16") types = "." + d.element.type + "." + c.element.type;
      if (a.element.type == "f64") types += ".rn";
      text += before_mma + "wmma.mma.sync.aligned" + layout(a) + layout(b) + "." + kind.shape() + types +
              " " + fragment + ", " + list(0) + ", " + list(1) + ", " + list(2) + ";\n" + after_mma;
    }
    const std::string stride = stride_of(matrix, index);
    const std::string tail =
        ".sync.aligned" + layout(matrix) + "." + kind.shape() + place.space + "." + matrix.element.type + " ";
    text += index < 3 ? "wmma.load." + std::string(1, name) + tail + fragment + ", " + place.address +
                            stride + ";\n"
                      : "wmma.store.d" + tail + place.address + ", " + fragment + stride + ";\n";
  }
  if (shared) text += "bar.sync 0;\n" + copy(3, d.bytes(), false);
  Module module({kernel_text(4, text, shared ? shared_memory : "")}, 0);
  LaunchShape shape;
  shape.block = {32, 1, 1};
  Arguments arguments;
  for (const Buffer& buffer : buffers) arguments.add(buffer.address());
  take_reports();
  Run result{run(module, shape, arguments), take_reports()};
  if (result.error == 0) {
    const auto bytes = buffers[3].values<std::uint8_t>(d.bytes() + 128);
    // What lies between and behind the lines stays as it was.
    std::vector<bool> inside(bytes.size());
    for (int row = 0; row < d.rows; ++row)
      for (int column = 0; column < d.columns; ++column)
        std::fill_n(inside.begin() + static_cast<std::ptrdiff_t>(d.offset(row, column)), d.element.bits / 8,
                    true);
    for (std::size_t byte = 0; byte < bytes.size(); ++byte)
      if (!inside[byte] && bytes[byte] != 0x77)
        FAIL_CHECK("wmma.store wrote byte " << byte << " outside of the matrix");
    d.decode(bytes);
  }
  return result;
}

Stored matrix(int rows, int columns, const Element& element, bool column_major, bool padded) {
  const int length = column_major ? rows : columns;
  Stored stored{rows,
                columns,
                element,
                column_major,
                length + (padded ? 128 / element.bits * static_cast<int>(2 + generator() % 3) : 0),
                {}};
  for (int e = 0; e < rows * columns; ++e)
    stored.values.push_back(static_cast<int>(generator() % 7) - (element.type == "u8" ? 0 : 3));
  return stored;
}

double product_at(const Stored& a, const Stored& b, int row, int column) {
  double sum = 0;
  for (int k = 0; k < a.columns; ++k) sum += a.at(row, k) * b.at(k, column);
  return sum;
}

TEST_CASE("wmma: every kind, layout and state space against plain products") {
  for (const Kind& kind : kinds())
    for (int variant = 0; variant < 16; ++variant) {
      const bool padded = variant % 4 != 0;
      const Where where = static_cast<Where>(variant / 4);
      const Stored a = matrix(kind.m, kind.k, kind.factor, generator() % 2, padded),
                   b = matrix(kind.k, kind.n, kind.factor, generator() % 2, padded),
                   c = matrix(kind.m, kind.n, kind.c, generator() % 2, padded);
      Stored d = matrix(kind.m, kind.n, kind.d, generator() % 2, padded);
      CAPTURE(kind.shape());
      CAPTURE(kind.factor.type);
      CAPTURE(kind.c.type);
      CAPTURE(kind.d.type);
      CAPTURE(variant);
      CAPTURE(a.column_major);
      CAPTURE(b.column_major);
      const Run got = multiply(kind, a, b, c, d, where, padded || generator() % 2);
      CHECK(got.error == 0);
      CHECK(got.reports.empty());
      int wrong = 0;
      for (int row = 0; row < kind.m; ++row)
        for (int column = 0; column < kind.n; ++column)
          wrong += d.at(row, column) != product_at(a, b, row, column) + c.at(row, column);
      CHECK(wrong == 0);
    }
}

TEST_CASE("wmma: elements of fragments may be changed one by one") {
  for (const Kind& kind : kinds()) {
    if (kind.factor.type != "f16" || kind.d.type != "f32" || kind.c.type != "f32") continue;
    const Stored a = matrix(kind.m, kind.k, f16, false, true), b = matrix(kind.k, kind.n, f16, true, false),
                 c = matrix(kind.m, kind.n, f32, false, false);
    Stored d = matrix(kind.m, kind.n, f32, true, true);
    // A and B are negated in all registers, copies of elements included; C is doubled; D gets 1 added.
    std::string before, after;
    for (int r = 0; r < 8; ++r) {
      const std::string n = std::to_string(r);
      before +=
          "xor.b32 %a" + n + ", %a" + n + ", 0x80008000;\nadd.f32 %c" + n + ", %c" + n + ", %c" + n + ";\n";
      after += "add.f32 %d" + n + ", %d" + n + ", 0f3f800000;\n";
    }
    const Run got = multiply(kind, a, b, c, d, Where::global, true, before, after);
    CHECK(got.error == 0);
    for (int row = 0; row < kind.m; ++row)
      for (int column = 0; column < kind.n; ++column)
        CHECK(d.at(row, column) == 2 * c.at(row, column) + 1 - product_at(a, b, row, column));
  }
}

Run load_with(const std::string& prepare, const std::string& operands) {
  Buffer buffer(65536);
  const std::vector<std::uint8_t> zeros(65536);
  buffer.write(zeros.data(), zeros.size());
  Module module(
      {kernel_text(
          1,
          ".reg .b32 %a<8>;\n" + prepare +
              "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, " +
              operands + ";\n")},
      0);
  LaunchShape shape;
  shape.block = {32, 1, 1};
  take_reports();
  const int error = run(module, shape, Arguments().add(buffer.address()));
  return {error, take_reports()};
}

TEST_CASE("wmma: faults of addresses and strides") {
  using Kinds = std::vector<std::string>;
  const Run clean = load_with("", "[%p0+32], 24");
  CHECK(clean.error == 0);
  CHECK(clean.reports.empty());
  const Run misaligned = load_with("", "[%p0+16], 24");
  CHECK(misaligned.error == 716);
  CHECK(misaligned.reports == Kinds{"misaligned"});
  CHECK(load_with("", "[%p0], 20").error == 716);
  CHECK(load_with("", "[%p0], 4096").error == 700);
  const Run overlapping = load_with("", "[%p0], 8");
  CHECK(overlapping.error == 0);
  CHECK(overlapping.reports == Kinds{"wmma-stride"});
  const Run several =
      load_with("and.b64 %rd0, %t64, 1;\nshl.b64 %rd0, %rd0, 5;\nadd.s64 %rd0, %rd0, %p0;\n", "[%rd0], 16");
  CHECK(several.error == 719);
  CHECK(several.reports == Kinds{"wmma-uniform"});
  const Run partial = load_with("setp.eq.u32 %q0, %t, 7;\n@%q0 exit;\n", "[%p0], 16");
  CHECK(partial.reports == Kinds{"partial-warp"});
}

TEST_CASE("wmma: integer sums wrap, or stop at the ends of the range with .satfinite") {
  for (const bool saturates : {false, true}) {
    std::string text = ".reg .b32 %a<2>, %b<2>, %c<8>, %d<8>;\n";
    for (int r = 0; r < 2; ++r)
      text += "mov.u32 %a" + std::to_string(r) + ", 0x7f7f7f7f;\nmov.u32 %b" + std::to_string(r) +
              ", 0x7f7f7f7f;\n";
    for (int r = 0; r < 8; ++r) text += "mov.u32 %c" + std::to_string(r) + ", 0x7fffff00;\n";
    text += "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32" +
            std::string(saturates ? ".satfinite" : "") + " " + registers(s32, 'd', 8) + ", " +
            registers(s8, 'a', 2) + ", " + registers(s8, 'b', 2) + ", " + registers(s32, 'c', 8) + ";\n" +
            "shl.b64 %rd0, %t64, 2;\nadd.s64 %rd0, %rd0, %p0;\nst.global.u32 [%rd0], %d5;\n";
    Module module({kernel_text(1, text)}, 0);
    Buffer out(128);
    LaunchShape shape;
    shape.block = {32, 1, 1};
    CHECK(run(module, shape, Arguments().add(out.address())) == 0);
    for (const std::uint32_t d : out.values<std::uint32_t>(32))
      CHECK(d == (saturates ? 0x7fffffffu : 0x7fffff00u + 16 * 127 * 127));
  }
}

}  // namespace
}  // namespace emulator::test

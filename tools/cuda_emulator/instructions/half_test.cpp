#include "instructions/half.h"

#include <cmath>

#include "tests/float_format.h"
#include "tests/lanewise.h"

using namespace emulator;
using namespace emulator::test;
using namespace emulator::test::formats;

namespace {

using Half = std::uint16_t;
using Pair = std::uint32_t;
using Halves = std::vector<Half>;
constexpr Rounding directions[] = {Rounding::nearest, Rounding::zero, Rounding::down, Rounding::up};

struct HalfType {
  std::string name;
  Format format;
  bool bfloat() const { return format.exponent_bits == 8; }
  bool nan(Half x) const { return format.is_nan(x); }
  bool finite(Half x) const { return !format.is_nan(x) && !format.is_infinite(x); }
  Half flushed(Half x) const {
    return finite(x) && (x & 0x7fff) < 1 << format.fraction_bits ? x & 0x8000 : x;
  }
  /// For sums and products with infinite operands.
  float widened(Half x) const {
    return format.is_infinite(x) ? std::copysign(INFINITY, x & 0x8000 ? -1.0f : 1.0f)
                                 : static_cast<float>(format.value(x));
  }
};
const HalfType f16{"f16", f16_format}, bf16{"bf16", bf16_format};

template <class... S>
void check_pairs(const std::string& statement, const std::string& type, const Halves& scalar,
                 const S&... sources) {
  std::string packed = statement;
  packed.replace(packed.find("." + type + " "), type.size() + 1, "." + type + "x2");
  // Row r of the pairs: row r in the lower half, row r + 1 in the upper half.
  const auto pack = [](const Halves& x) {
    std::vector<Pair> pairs;
    for (std::size_t row = 0; row < x.size(); ++row)
      pairs.push_back(x[row] | Pair{x[(row + 1) % x.size()]} << 16);
    return pairs;
  };
  const std::vector<Pair> got = evaluate<Pair>(packed, pack(sources)...), want = pack(scalar);
  for (std::size_t row = 0; row < got.size(); ++row)
    if (got[row] != want[row]) {
      FAIL_CHECK(packed << " row " << row << std::hex << ": " << got[row] << ", want " << want[row]);
      return;
    }
}

void check_half(const std::string& statement, std::size_t row, Half got, Half want,
                std::initializer_list<Half> operands) {
  if (got == want) return;
  std::string text;
  char buffer[32];
  for (const Half x : operands) std::snprintf(buffer, sizeof buffer, " %04x", x), text += buffer;
  std::snprintf(buffer, sizeof buffer, ": %04x, want %04x", got, want);
  FAIL_CHECK(statement << " row " << row << " of" << text << buffer);
}

Halves every_half() {
  Halves x(65536);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<Half>(k);
  return x;
}
Halves samples(const HalfType& type, std::size_t count, std::uint64_t seed) {
  const auto patterns = sample_patterns(type.format, count, seed);
  return Halves(patterns.begin(), patterns.end());
}

enum class Op { add, sub, mul, fma };

Half expected(const HalfType& type, Op op, Half a, Half b, Half c) {
  if (op == Op::sub) b ^= 0x8000;
  if (type.nan(a) || type.nan(b) || (op == Op::fma && type.nan(c))) return 0x7fff;
  if (!type.finite(a) || !type.finite(b) || (op == Op::fma && !type.finite(c))) {
    const float x = type.widened(a), y = type.widened(b), z = type.widened(c);
    const double special = op == Op::mul ? x * y : op == Op::fma ? double{x} * y + z : x + y;
    if (special != special) return 0x7fff;
    return static_cast<Half>(type.format.beyond()) | (special < 0 ? 0x8000 : 0);
  }
  const Quad x = type.format.value(a), y = type.format.value(b);
  const bool negative_product = (a ^ b) & 0x8000;
  Exact exact{};
  bool negative_zero = false;
  switch (op) {
    case Op::add:
    case Op::sub:
      exact = exact_sum(x, y);
      negative_zero = a & b & 0x8000;
      break;
    case Op::mul:
      exact = {x * y};
      negative_zero = negative_product;
      break;
    case Op::fma:
      exact = exact_sum(x * y, type.format.value(c));
      negative_zero = negative_product && (c & 0x8000);
      break;
  }
  return static_cast<Half>(round_exact(type.format, exact, Rounding::nearest, negative_zero));
}

void check_arithmetic(const HalfType& type, Op op, const std::string& name,
                      const std::vector<std::string>& modifiers) {
  const std::size_t rows = 16384;
  const Halves a = samples(type, rows, 11);
  Halves b = samples(type, rows, 12), c = samples(type, rows, 13);
  for (std::size_t row = 0; row < rows; ++row) {
    if (row % 4 == 1) b[row] = static_cast<Half>((a[row] ^ 0x8000) + row % 3);
    if (row % 4 == 2) c[row] = static_cast<Half>(expected(type, Op::mul, a[row], b[row], 0) ^ 0x8000);
  }
  for (const std::string& modifier : modifiers) {
    const auto has = [&](const char* text) { return modifier.find(text) != std::string::npos; };
    const std::string statement =
        name + modifier + "." + type.name + " %d, %s0, %s1" + (op == Op::fma ? ", %s2;" : ";");
    const Halves got = op == Op::fma ? evaluate<Half>(statement, a, b, c) : evaluate<Half>(statement, a, b);
    for (std::size_t row = 0; row < rows; ++row) {
      const bool ftz = has("ftz");
      const auto input = [&](Half x) { return ftz ? type.flushed(x) : x; };
      Half want = input(expected(type, op, input(a[row]), input(b[row]), input(c[row])));
      const Half one = static_cast<Half>(type.format.bias() << type.format.fraction_bits);
      if (has("relu") && !type.nan(want) && want & 0x8000) want = 0;
      if (has("sat")) want = type.nan(want) || want & 0x8000 ? 0 : std::min(want, one);
      check_half(statement, row, got[row], want, {a[row], b[row], c[row]});
    }
    if (op == Op::fma) {
      check_pairs(statement, type.name, got, a, b, c);
    } else {
      check_pairs(statement, type.name, got, a, b);
    }
  }
}

template <class Narrow>
void check_narrowing(const Format& format, const char* name, Narrow narrow) {
  for (std::uint64_t pattern = 0; pattern < format.beyond(); ++pattern) {
    const double value = static_cast<double>(format.value(pattern)),
                 next = static_cast<double>(format.value(pattern + 1));
    const double middle = (value + next) / 2;
    for (const double x : {value, middle, std::nextafter(value, 1e300), std::nextafter(middle, 1e300),
                           std::nextafter(middle, 0), std::nextafter(next, 0), next})
      for (const double signed_x : {x, -x})
        for (const Rounding rounding : directions) {
          const std::uint64_t low = x == next && pattern + 1 < format.beyond() ? pattern + 1 : pattern;
          const std::uint64_t want = round_between(
              format, low, [&](Quad v) { return Exact{x}.compare(v); }, std::signbit(signed_x), rounding);
          const std::uint64_t got = narrow(signed_x, rounding);
          if (got != want)
            FAIL_CHECK(name << " " << signed_x << std::hex << ": " << got << ", want " << want);
        }
  }
}

}  // namespace

TEST_CASE("Halves widen to f32 exactly") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Half x = static_cast<Half>(bits);
    if (f16.finite(x)) {
      CHECK(bits_as<std::uint32_t>(half_to_float(x)) ==
            bits_as<std::uint32_t>(
                std::copysign(static_cast<float>(f16_format.value(x)), bits & 0x8000 ? -1.0f : 1.0f)));
    } else {
      CHECK(f16.nan(x) == std::isnan(half_to_float(x)));
      CHECK(std::signbit(half_to_float(x)) == ((bits & 0x8000) != 0));
    }
    if (bf16.finite(x)) {
      CHECK(static_cast<Quad>(bfloat_to_float(x)) == bf16_format.value(x));
    } else {
      CHECK(bf16.nan(x) == std::isnan(bfloat_to_float(x)));
    }
  }
}

TEST_CASE("Doubles and floats narrow to halves in every direction") {
  check_narrowing(f16_format, "f16", [](double x, Rounding r) { return double_to_half(x, r); });
  check_narrowing(bf16_format, "bf16", [](double x, Rounding r) { return double_to_bfloat(x, r); });
  const Quad tiny = static_cast<Quad>(5e-324);
  for (const Rounding rounding : directions) {
    CHECK(double_to_half(-5e-324, rounding) == round_exact(f16_format, {-tiny}, rounding));
    CHECK(double_to_bfloat(5e-324, rounding) == round_exact(bf16_format, {tiny}, rounding));
    CHECK(double_to_half(1e300, rounding) == round_exact(f16_format, {1e300}, rounding));
    CHECK(double_to_half(INFINITY, rounding) == 0x7c00);
    CHECK(double_to_half(-INFINITY, rounding) == 0xfc00);
    CHECK(double_to_bfloat(INFINITY, rounding) == 0x7f80);
    CHECK(float_to_half(-NAN, rounding) == 0x7fff);
    CHECK(float_to_bfloat(bits_as<float>(0xff800001u), rounding) == 0x7fff);
    CHECK(float_to_half(-0.0f, rounding) == 0x8000);
  }
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_bfloat(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("f16 and bf16 arithmetic, single and in pairs") {
  for (const Op op : {Op::add, Op::sub, Op::mul}) {
    const std::string name = op == Op::add ? "add" : op == Op::sub ? "sub" : "mul";
    check_arithmetic(f16, op, name, {"", ".rn", ".ftz", ".sat", ".ftz.sat"});
    check_arithmetic(bf16, op, name, {"", ".rn"});
  }
  check_arithmetic(f16, Op::fma, "fma",
                   {".rn", ".rn.ftz", ".rn.sat", ".rn.ftz.sat", ".rn.relu", ".rn.ftz.relu"});
  check_arithmetic(bf16, Op::fma, "fma", {".rn", ".rn.relu"});
}

TEST_CASE("fma of halves rounds once") {
  // (1 + 2^-4)(1 + 2^-4) = 1 + 2^-3 + 2^-8 lies between two values of bf16: the least subnormal value decides.
  Halves x(128), y(128), z(128), want(128);
  for (std::size_t row = 0; row < 128; ++row) {
    x[row] = y[row] = 0x3f88, z[row] = row % 2 ? 0x8001 : 0x0001;
    want[row] = row % 2 ? 0x3f90 : 0x3f91;
  }
  CHECK(evaluate<Half>("fma.rn.bf16 %d, %s0, %s1, %s2;", x, y, z) == want);
}

TEST_CASE("neg and abs of every half") {
  const Halves x = every_half();
  for (const HalfType& type : {f16, bf16})
    for (const char* name : {"neg", "abs"})
      for (const bool ftz : {false, true}) {
        if (ftz && type.bfloat()) continue;
        const std::string statement = std::string(name) + (ftz ? ".ftz." : ".") + type.name + " %d, %s0;";
        const Halves got = evaluate<Half>(statement, x);
        for (std::size_t row = 0; row < x.size(); ++row) {
          const Half a = ftz ? type.flushed(x[row]) : x[row];
          const Half want = type.nan(a) ? 0x7fff : *name == 'n' ? a ^ 0x8000 : a & 0x7fff;
          check_half(statement, row, got[row], want, {x[row]});
        }
        check_pairs(statement, type.name, got, x);
      }
}

TEST_CASE("min and max of halves") {
  for (const HalfType& type : {f16, bf16}) {
    const Halves a = samples(type, 8192, 21);
    Halves b = samples(type, 8192, 22);
    for (std::size_t row = 0; row < a.size(); row += 4) b[row] = a[row] ^ (row % 8 ? 0x8000 : 0);
    for (const bool maximum : {false, true})
      for (const bool ftz : {false, true})
        for (const bool nan : {false, true})
          for (const bool signs : {false, true}) {
            if (ftz && type.bfloat()) continue;
            const std::string statement = std::string(maximum ? "max" : "min") + (ftz ? ".ftz" : "") +
                                          (nan ? ".NaN" : "") + (signs ? ".xorsign.abs." : ".") + type.name +
                                          " %d, %s0, %s1;";
            const Halves got = evaluate<Half>(statement, a, b);
            for (std::size_t row = 0; row < a.size(); ++row) {
              Half x = a[row], y = b[row], want;
              const bool x_nan = type.nan(x), y_nan = type.nan(y);
              if (ftz) x = type.flushed(x), y = type.flushed(y);
              const Half sign = (x ^ y) & 0x8000;
              if (signs) x &= 0x7fff, y &= 0x7fff;
              if ((x_nan && y_nan) || (nan && (x_nan || y_nan))) {
                want = 0x7fff;
              } else {
                const Quad p = type.format.value(x),
                           q = type.format.value(y);  // an infinity counts as the next power of two
                if (x_nan || y_nan) {
                  want = x_nan ? y : x;
                } else if (p == q) {
                  want = maximum ? x & y : x | y;
                } else {
                  want = (p > q) == maximum ? x : y;
                }
                if (signs) want |= sign;
              }
              check_half(statement, row, got[row], want, {a[row], b[row]});
            }
            check_pairs(statement, type.name, got, a, b);
          }
  }
}

TEST_CASE("tanh and ex2 of every half keep their documented errors") {
  const Halves x = every_half();
  for (const HalfType& type : {f16, bf16})
    for (const bool tanh : {true, false}) {
      const bool ftz = type.bfloat() && !tanh;
      const std::string statement = std::string(tanh  ? "tanh.approx."
                                                : ftz ? "ex2.approx.ftz."
                                                      : "ex2.approx.") +
                                    type.name + " %d, %s0;";
      const Halves got = evaluate<Half>(statement, x);
      for (std::size_t row = 0; row < x.size(); ++row) {
        const Half a = ftz ? type.flushed(x[row]) : x[row];
        if (type.nan(a)) {
          check_half(statement, row, got[row], 0x7fff, {a});
          continue;
        }
        const long double value = type.widened(a), exact = tanh ? std::tanh(value) : std::exp2(value);
        const long double result = type.widened(got[row]);
        if (tanh && (a & 0x7fff) == 0) check_half(statement, row, got[row], a, {a});
        if (exact >= static_cast<long double>(type.format.value(type.format.beyond()))) {
          check_half(statement, row, got[row], static_cast<Half>(type.format.beyond()), {a});
        } else if (std::isinf(result)) {
          CHECK(exact > static_cast<long double>(type.format.value(type.format.beyond() - 1)));
        } else if (ftz && exact < 0x1p-126L) {
          check_half(statement, row, got[row], 0, {a});
        } else {
          const long double least = static_cast<long double>(type.format.value(1));
          const long double allowed =
              tanh ? (type.bfloat() ? 0x1p-8L : std::exp2(-10.987L))
                   : std::max(least, exact * (type.bfloat() ? 0x1p-7L : std::exp2(-9.9L)));
          if (std::fabs(result - exact) > allowed)
            FAIL_CHECK(statement << std::hex << " of " << a << ": " << got[row]);
        }
      }
      check_pairs(statement, type.name, got, x);
    }
}

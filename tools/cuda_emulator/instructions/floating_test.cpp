#include <cmath>
#include <numbers>

#include "tests/float_format.h"
#include "tests/lanewise.h"

using namespace emulator;
using namespace emulator::test;
using namespace emulator::test::formats;

namespace {

template <class T>
constexpr Format format_of = std::is_same_v<T, float> ? f32_format : f64_format;
template <class T>
using Bits = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;
template <class T>
const std::string type_of = std::is_same_v<T, float> ? ".f32" : ".f64";

struct NamedRounding {
  const char* suffix;
  Rounding rounding;
};
constexpr NamedRounding roundings[] = {
    {".rn", Rounding::nearest}, {".rz", Rounding::zero}, {".rm", Rounding::down}, {".rp", Rounding::up}};

enum class Op { add, sub, mul, fma, div, rcp, sqrt };

template <class T>
T host(Op op, T a, T b, T c) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::fma:
      return std::fma(a, b, c);
    case Op::div:
      return a / b;
    case Op::rcp:
      return 1 / a;
    default:
      return std::sqrt(a);
  }
}

/// What IEEE 754 asks for. Infinite and undefined results do not depend on the rounding: the host's.
template <class T>
T ieee(Op op, T a, T b, T c, Rounding rounding) {
  const Format format = format_of<T>;
  const T special = host(op, a, b, c);
  if (op == Op::rcp) b = a, a = 1;
  const bool quotient = op == Op::div || op == Op::rcp;
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c) || special != special ||
      (quotient && b == 0))
    return special;
  const bool signs_differ = std::signbit(a) != std::signbit(b);
  const auto sum = [&](Quad x, bool x_negative, T y) {
    const bool zero_negative = x_negative == std::signbit(y) ? x_negative : rounding == Rounding::down;
    return round_exact(format, exact_sum(x, y), rounding, zero_negative);
  };
  std::uint64_t bits = 0;
  switch (op) {
    case Op::add:
      bits = sum(a, std::signbit(a), b);
      break;
    case Op::sub:
      bits = sum(a, std::signbit(a), -b);
      break;
    case Op::mul:
      bits = round_exact(format, {Quad{a} * b}, rounding, signs_differ);
      break;
    case Op::fma:
      bits = sum(Quad{a} * b, signs_differ, c);
      break;
    case Op::div:
    case Op::rcp: {
      const Quad dividend = std::fabs(a), divisor = std::fabs(b);
      bits = round_magnitude(
          format, [&](Quad v) { return Exact{dividend}.compare(v * divisor); }, signs_differ, rounding);
      break;
    }
    case Op::sqrt:
      bits = round_magnitude(
          format, [&](Quad v) { return Exact{a}.compare(v * v); }, std::signbit(a), rounding);
      break;
  }
  return bits_as<T>(static_cast<Bits<T>>(bits));
}

bool is_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }
float without_subnormals(float x) { return is_subnormal(x) ? std::copysign(0.0f, x) : x; }

template <class T>
std::vector<T> samples(std::size_t count, std::uint64_t seed) {
  std::vector<T> values;
  for (const std::uint64_t pattern : sample_patterns(format_of<T>, count, seed))
    values.push_back(bits_as<T>(static_cast<Bits<T>>(pattern)));
  return values;
}

/// Rows of operands, some of which nearly cancel.
template <class T>
struct Operands {
  std::vector<T> a, b, c;
  explicit Operands(std::size_t rows, std::uint64_t seed = 1)
      : a(samples<T>(rows, seed)), b(samples<T>(rows, seed + 1)), c(samples<T>(rows, seed + 2)) {
    for (std::size_t row = 0; row < rows; ++row) {
      if (row % 4 == 1) b[row] = -a[row];
      if (row % 4 == 2) b[row] = std::nextafter(-a[row], T(row % 8 ? 9 : -9));
      if (row % 3 == 0) c[row] = -(a[row] * b[row]);
    }
  }
};

template <class T>
void check_bits(const std::string& statement, std::size_t row, T got, T want,
                std::initializer_list<T> operands) {
  if (bits_as<Bits<T>>(got) == bits_as<Bits<T>>(want)) return;
  std::string text;
  char buffer[64];
  for (const T x : operands)
    std::snprintf(buffer, sizeof buffer, " %a", static_cast<double>(x)), text += buffer;
  std::snprintf(buffer, sizeof buffer, ": %a, want %a", static_cast<double>(got), static_cast<double>(want));
  FAIL_CHECK(statement << " row " << row << " of" << text << buffer);
}

template <class T>
void check_rounded(Op op, const std::string& name, int sources, const std::vector<std::string>& modifiers) {
  const Operands<T> x(2048, static_cast<std::uint64_t>(op) * 100);
  for (const NamedRounding& mode : roundings)
    for (const std::string& modifier : modifiers) {
      const bool ftz = modifier.find("ftz") != std::string::npos,
                 sat = modifier.find("sat") != std::string::npos;
      std::string statement = name + mode.suffix + modifier + type_of<T> + " %d";
      for (int k = 0; k < sources; ++k) statement += ", %s" + std::to_string(k);
      const std::vector<T> got = evaluate<T>(statement + ";", x.a, x.b, x.c);
      for (std::size_t row = 0; row < got.size(); ++row) {
        T a = x.a[row], b = sources > 1 ? x.b[row] : T{1}, c = sources > 2 ? x.c[row] : T{1};
        if constexpr (std::is_same_v<T, float>)
          if (ftz) a = without_subnormals(a), b = without_subnormals(b), c = without_subnormals(c);
        T want = ieee(op, a, b, c, mode.rounding);
        if constexpr (std::is_same_v<T, float>) {
          if (ftz) want = without_subnormals(want);
          if (want != want) want = bits_as<float>(0x7fffffffu);
        } else if (want != want) {
          CHECK(got[row] != got[row]);
          continue;
        }
        if (sat) want = want >= 1 ? T{1} : want > 0 ? want : T{0};
        check_bits(statement, row, got[row], want, {a, b, c});
      }
    }
}

const std::vector<std::string> plain{""}, flushing{"", ".ftz"}, saturating{"", ".ftz", ".sat", ".ftz.sat"};

/// A unary f32 approximation: error(exact result, result) <= 1 for finite results; the corners come as bits.
struct Corner {
  float x, result;
};
constexpr float infinity = std::numeric_limits<float>::infinity();
const float not_a_number = bits_as<float>(0x7fffffffu);
template <class F, class Allowed>
void check_approximation(const std::string& name, F function, Allowed allowed, std::vector<Corner> corners) {
  std::vector<float> x = samples<float>(4096, 7);
  for (std::size_t k = 0; k < corners.size(); ++k) x[k] = corners[k].x;
  for (const char* suffix : {"", ".ftz"}) {
    if (name == "tanh" && *suffix) continue;
    const std::string statement = name + ".approx" + suffix + ".f32 %d, %s0;";
    const std::vector<float> got = evaluate<float>(statement, x);
    for (std::size_t row = 0; row < x.size(); ++row) {
      const float input = *suffix ? without_subnormals(x[row]) : x[row];
      if (row < corners.size()) {
        check_bits(statement, row, got[row], corners[row].result, {x[row]});
        continue;
      }
      const long double exact = function(static_cast<long double>(input));
      if (exact != exact) {
        check_bits(statement, row, got[row], not_a_number, {x[row]});
      } else if (*suffix && std::fabs(exact) < 0x1p-126L) {
        check_bits(statement, row, got[row], std::copysign(0.0f, static_cast<float>(exact)), {x[row]});
      } else if (std::isinf(static_cast<float>(exact))) {
        check_bits(statement, row, got[row], static_cast<float>(exact), {x[row]});
      } else {
        const long double error = std::fabs(exact - got[row]);
        CHECK_MESSAGE(error <= allowed(static_cast<long double>(input), exact), statement << " of " << input);
      }
    }
  }
}
// A unit in the last place of f32.
long double ulp(long double exact) {
  const float x = std::fabs(static_cast<float>(exact));
  return std::max<long double>(std::nextafter(x, infinity) - static_cast<long double>(x), 0x1p-149L);
}

}  // namespace

TEST_CASE("f32 arithmetic rounds as IEEE 754 in four directions") {
  check_rounded<float>(Op::add, "add", 2, saturating);
  check_rounded<float>(Op::sub, "sub", 2, saturating);
  check_rounded<float>(Op::mul, "mul", 2, saturating);
  check_rounded<float>(Op::fma, "fma", 3, saturating);
  check_rounded<float>(Op::fma, "mad", 3, saturating);
  check_rounded<float>(Op::div, "div", 2, flushing);
  check_rounded<float>(Op::rcp, "rcp", 1, flushing);
  check_rounded<float>(Op::sqrt, "sqrt", 1, flushing);
}

TEST_CASE("f64 arithmetic rounds as IEEE 754 in four directions") {
  check_rounded<double>(Op::add, "add", 2, plain);
  check_rounded<double>(Op::sub, "sub", 2, plain);
  check_rounded<double>(Op::mul, "mul", 2, plain);
  check_rounded<double>(Op::fma, "fma", 3, plain);
  check_rounded<double>(Op::div, "div", 2, plain);
  check_rounded<double>(Op::rcp, "rcp", 1, plain);
  check_rounded<double>(Op::sqrt, "sqrt", 1, plain);
}

TEST_CASE("Arithmetic without a rounding modifier rounds to nearest") {
  const Operands<float> x(512);
  CHECK(std::memcmp(evaluate<float>("add.f32 %d, %s0, %s1;", x.a, x.b).data(),
                    evaluate<float>("add.rn.f32 %d, %s0, %s1;", x.a, x.b).data(), 2048) == 0);
  CHECK(std::memcmp(evaluate<float>("mul.f32 %d, %s0, %s1;", x.a, x.b).data(),
                    evaluate<float>("mul.rn.f32 %d, %s0, %s1;", x.a, x.b).data(), 2048) == 0);
}

TEST_CASE("f64 arithmetic keeps the payload of a NaN") {
  const double nan = bits_as<double>(0x7ff8'0000'0000'1234), other = 3;
  const std::vector<double> a(128, nan), b(128, other);
  CHECK(bits_as<std::uint64_t>(evaluate<double>("add.f64 %d, %s0, %s1;", a, b)[0]) == 0x7ff8'0000'0000'1234);
  CHECK(bits_as<std::uint64_t>(evaluate<double>("neg.f64 %d, %s0;", a)[0]) == 0xfff8'0000'0000'1234);
  CHECK(bits_as<std::uint64_t>(evaluate<double>("abs.f64 %d, %s0;", a)[0]) == 0x7ff8'0000'0000'1234);
}

TEST_CASE("min and max of f32 and f64") {
  const Operands<float> x(2048);
  for (const bool maximum : {false, true})
    for (const bool ftz : {false, true})
      for (const bool nan : {false, true})
        for (const bool signs : {false, true}) {
          const std::string statement = std::string(maximum ? "max" : "min") + (ftz ? ".ftz" : "") +
                                        (nan ? ".NaN" : "") + (signs ? ".xorsign.abs" : "") +
                                        ".f32 %d, %s0, %s1;";
          const std::vector<float> got = evaluate<float>(statement, x.a, x.b);
          for (std::size_t row = 0; row < got.size(); ++row) {
            float a = x.a[row], b = x.b[row], want;
            if (ftz) a = without_subnormals(a), b = without_subnormals(b);
            const bool negative = std::signbit(a) != std::signbit(b);
            if (signs) a = std::fabs(a), b = std::fabs(b);
            if ((a != a && b != b) || (nan && (a != a || b != b))) {
              want = not_a_number;
            } else {
              // The order of patterns as signed magnitudes, in which -0 < +0.
              const auto key = [](float v) {
                const auto bits = bits_as<std::int32_t>(v);
                return bits < 0 ? static_cast<std::int64_t>(INT32_MIN) - bits - 1 : bits;
              };
              want = a != a ? b : b != b ? a : (key(a) < key(b)) == maximum ? b : a;
              if (signs) want = negative ? -want : want;
            }
            check_bits(statement, row, got[row], want, {x.a[row], x.b[row]});
          }
        }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> a(128, 1), b(128, 2);
  a[1] = nan, a[2] = 0.0, b[2] = -0.0, a[3] = -0.0, b[3] = 0.0, b[4] = nan, a[5] = b[5] = nan, a[6] = 5e-324,
  b[6] = 0;
  const std::vector<double> least = evaluate<double>("min.f64 %d, %s0, %s1;", a, b);
  const std::vector<double> most = evaluate<double>("max.f64 %d, %s0, %s1;", a, b);
  CHECK((least[0] == 1 && least[1] == 2 && least[4] == 1 && least[6] == 0));
  CHECK((most[0] == 2 && most[1] == 2 && most[4] == 1 && most[6] == 5e-324));
  CHECK(
      (std::signbit(least[2]) && std::signbit(least[3]) && !std::signbit(most[2]) && !std::signbit(most[3])));
  CHECK((least[5] != least[5] && most[5] != most[5]));
}

TEST_CASE("neg, abs, copysign and testp") {
  const Operands<float> x(2048);
  const std::vector<float> neg = evaluate<float>("neg.f32 %d, %s0;", x.a),
                           abs = evaluate<float>("abs.f32 %d, %s0;", x.a),
                           neg_ftz = evaluate<float>("neg.ftz.f32 %d, %s0;", x.a),
                           abs_ftz = evaluate<float>("abs.ftz.f32 %d, %s0;", x.a),
                           sign = evaluate<float>("copysign.f32 %d, %s0, %s1;", x.a, x.b);
  for (std::size_t row = 0; row < 2048; ++row) {
    const float a = x.a[row], flushed = without_subnormals(a);
    check_bits("neg", row, neg[row], a != a ? not_a_number : -a, {a});
    check_bits("abs", row, abs[row], a != a ? not_a_number : std::fabs(a), {a});
    check_bits("neg.ftz", row, neg_ftz[row], a != a ? not_a_number : -flushed, {a});
    check_bits("abs.ftz", row, abs_ftz[row], a != a ? not_a_number : std::fabs(flushed), {a});
    const std::uint32_t bits =
        (bits_as<std::uint32_t>(a) & 0x80000000u) | (bits_as<std::uint32_t>(x.b[row]) & 0x7fffffffu);
    check_bits("copysign", row, sign[row], bits_as<float>(bits), {a, x.b[row]});
  }
  const Operands<double> y(512);
  const std::vector<double> wide_sign = evaluate<double>("copysign.f64 %d, %s0, %s1;", y.a, y.b);
  for (std::size_t row = 0; row < 512; ++row)
    check_bits("copysign.f64", row, wide_sign[row], std::copysign(y.b[row], y.a[row]), {y.a[row], y.b[row]});

  const auto check_property = [&](const std::string& name, auto property) {
    const std::vector<Predicate> single = evaluate<Predicate>("testp." + name + ".f32 %d, %s0;", x.a);
    const std::vector<Predicate> wide = evaluate<Predicate>("testp." + name + ".f64 %d, %s0;", y.a);
    for (std::size_t row = 0; row < 2048; ++row)
      CHECK_MESSAGE(static_cast<bool>(single[row]) == property(std::fpclassify(x.a[row])),
                    name << " " << x.a[row]);
    for (std::size_t row = 0; row < 512; ++row)
      CHECK_MESSAGE(static_cast<bool>(wide[row]) == property(std::fpclassify(y.a[row])),
                    name << " " << y.a[row]);
  };
  check_property("finite", [](int kind) { return kind != FP_INFINITE && kind != FP_NAN; });
  check_property("infinite", [](int kind) { return kind == FP_INFINITE; });
  check_property("number", [](int kind) { return kind != FP_NAN; });
  check_property("notanumber", [](int kind) { return kind == FP_NAN; });
  check_property("normal", [](int kind) { return kind == FP_NORMAL || kind == FP_ZERO; });
  check_property("subnormal", [](int kind) { return kind == FP_SUBNORMAL; });
}

TEST_CASE("f32 approximations keep their documented errors") {
  using L = long double;
  check_approximation(
      "ex2", [](L x) { return std::exp2(x); }, [](L, L exact) { return 2 * ulp(exact); },
      {{0.0f, 1},
       {-0.0f, 1},
       {-infinity, 0},
       {infinity, infinity},
       {not_a_number, not_a_number},
       {10, 1024}});
  check_approximation(
      "lg2", [](L x) { return std::log2(x); },
      [](L x, L exact) { return x > 0.5L && x < 2 ? 0x1p-22L : 0x1p-22L * std::fabs(exact); },
      {{0.0f, -infinity},
       {-0.0f, -infinity},
       {-1.0f, not_a_number},
       {-infinity, not_a_number},
       {infinity, infinity},
       {8, 3}});
  const auto trigonometric = [](L x, L) {
    return std::fabs(x) <= 2 * std::numbers::pi_v<L>     ? L(std::ldexp(1.0, -20) * std::sqrt(0.5))
           : std::fabs(x) <= 100 * std::numbers::pi_v<L> ? L(std::ldexp(1.0, -15))
                                                         : L(2);
  };
  check_approximation("sin", [](L x) { return std::sin(x); }, trigonometric,
                      {{0.0f, 0.0f}, {-0.0f, -0.0f}, {infinity, not_a_number}, {-infinity, not_a_number}});
  check_approximation("cos", [](L x) { return std::cos(x); }, trigonometric,
                      {{0.0f, 1}, {-0.0f, 1}, {infinity, not_a_number}, {-infinity, not_a_number}});
  check_approximation(
      "rcp", [](L x) { return 1 / x; }, [](L, L exact) { return ulp(exact); },
      {{0.0f, infinity}, {-0.0f, -infinity}, {infinity, 0.0f}, {-infinity, -0.0f}});
  check_approximation(
      "rsqrt", [](L x) { return 1 / std::sqrt(x); }, [](L, L exact) { return L(1.3e-7) * exact; },
      {{0.0f, infinity},
       {-0.0f, -infinity},
       {infinity, 0.0f},
       {-infinity, not_a_number},
       {-2, not_a_number}});
  check_approximation(
      "sqrt", [](L x) { return std::sqrt(x); },
      [](L, L exact) { return std::max(0x1p-23L * exact, 0x1p-150L); },
      {{0.0f, 0.0f}, {-0.0f, -0.0f}, {infinity, infinity}, {-infinity, not_a_number}, {-2, not_a_number}});
  check_approximation(
      "tanh", [](L x) { return std::tanh(x); }, [](L, L exact) { return 0x1p-11L * std::fabs(exact); },
      {{0.0f, 0.0f}, {-0.0f, -0.0f}, {infinity, 1}, {-infinity, -1}, {0x1p-149f, 0x1p-149f}});
}

TEST_CASE("Approximate and full-range division") {
  const Operands<float> x(4096);
  for (const char* form : {".approx", ".approx.ftz", ".full", ".full.ftz"}) {
    const std::string statement = "div" + std::string(form) + ".f32 %d, %s0, %s1;";
    const bool ftz = statement.find("ftz") != std::string::npos,
               full = statement.find("full") != std::string::npos;
    const std::vector<float> got = evaluate<float>(statement, x.a, x.b);
    for (std::size_t row = 0; row < got.size(); ++row) {
      const float a = ftz ? without_subnormals(x.a[row]) : x.a[row],
                  b = ftz ? without_subnormals(x.b[row]) : x.b[row];
      const float nearest = static_cast<float>(static_cast<long double>(a) / b);
      const long double exact = static_cast<long double>(a) / b;
      if (!full && std::isfinite(b) && std::fabs(b) > 0x1p126f) {
        const float want = a != a || std::isinf(a) ? not_a_number : std::copysign(0.0f, nearest);
        check_bits(statement, row, got[row], want, {a, b});
      } else if (exact != exact) {
        check_bits(statement, row, got[row], not_a_number, {a, b});
      } else if (std::isinf(nearest)) {
        check_bits(statement, row, got[row], nearest, {a, b});
      } else if (ftz && std::fabs(nearest) < 0x1p-126f) {
        check_bits(statement, row, got[row], std::copysign(0.0f, nearest), {a, b});
      } else {
        CHECK_MESSAGE(std::fabs(got[row] - exact) <= 2 * ulp(exact), statement << a << " / " << b);
      }
    }
  }
}

TEST_CASE("f64 approximations") {
  std::vector<double> x = samples<double>(2048, 3);
  constexpr double inf = std::numeric_limits<double>::infinity();
  const double corners[] = {
      0.0, -0.0, 5e-324, -5e-324, inf, -inf, bits_as<double>(0x7ff8'0000'0000'0001), 0x1.8p1023};
  std::copy(std::begin(corners), std::end(corners), x.begin());
  const std::vector<double> rcp = evaluate<double>("rcp.approx.ftz.f64 %d, %s0;", x),
                            root = evaluate<double>("rsqrt.approx.ftz.f64 %d, %s0;", x),
                            full = evaluate<double>("rsqrt.approx.f64 %d, %s0;", x);
  const double nan = bits_as<double>(0x7fff'ffff'0000'0000);
  const double rcp_corners[] = {inf, -inf, inf, -inf, 0.0, -0.0, nan, 0.0};
  const double root_corners[] = {inf, -inf, inf, -inf, 0.0, nan, nan, -1};
  for (std::size_t k = 0; k < std::size(corners); ++k) {
    check_bits("rcp.approx.ftz.f64", k, rcp[k], rcp_corners[k], {x[k]});
    if (root_corners[k] != -1) check_bits("rsqrt.approx.ftz.f64", k, root[k], root_corners[k], {x[k]});
  }
  CHECK((full[0] == inf && full[1] == -inf && full[4] == 0 && full[5] != full[5] && full[6] != full[6]));
  for (std::size_t row = std::size(corners); row < x.size(); ++row) {
    if (!std::isnormal(x[row])) continue;
    CHECK((bits_as<std::uint64_t>(rcp[row]) & 0xffffffff) == 0);
    if (std::isnormal(1 / x[row])) CHECK(std::fabs(rcp[row] * x[row] - 1) < 0x1p-18);
    if (x[row] < 0) continue;
    CHECK((bits_as<std::uint64_t>(root[row]) & 0xffffffff) == 0);
    CHECK(std::fabs(root[row] * root[row] * x[row] - 1) < 0x1p-18);
    CHECK(std::fabs(full[row] * full[row] * x[row] - 1) < 0x1p-21);
  }
}

TEST_CASE("Forms that PTX does not have are refused") {
  for (const char* statement :
       {"add.rni.f32 %f1, %f2, %f3;", "fma.f32 %f1, %f2, %f3, %f4;", "tanh.approx.ftz.f32 %f1, %f2;",
        "div.f32 %f1, %f2, %f3;", "sin.f32 %f1, %f2;", "add.ftz.f64 %fd1, %fd2, %fd3;",
        "add.sat.f64 %fd1, %fd2, %fd3;", "max.xorsign.f32 %f1, %f2, %f3;", "add.f32 %f1, %f2;"}) {
    Module module({kernel_text(0, statement)}, 0);
    CHECK_MESSAGE(run(module, {}, {}) != 0, statement);
    CHECK_FALSE(take_reports().empty());
  }
}

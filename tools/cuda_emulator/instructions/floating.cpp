#include <cmath>
#include <limits>
#include <type_traits>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"
#include "instructions/rounding.h"

// f32 and f64 (PTX ISA 9.7.3). f32 results that are NaN are nan_f32. f64 results are the host's, which keeps payloads.
namespace emulator {
namespace {

using ptx::Type;

template <bool ftz, class T>
T input(T x) {
  if constexpr (ftz) return flush(x);
  return x;
}
template <bool ftz, bool sat, class T>
T outcome(T x) {
  if constexpr (ftz) x = flush(x);
  if constexpr (sat) x = saturate(x);
  if constexpr (std::is_same_v<T, float>) x = canonical(x);
  return x;
}

// Takes .f32 or .f64 and .ftz, which only .f32 has, and appends the operands: a result and `sources` sources.
struct Shape {
  Type type;
  bool single, ftz;
};
Shape take_shape(Form& form, std::size_t sources) {
  const Type type = form.take_type({Type::f32, Type::f64});
  if (form.operand_count() != sources + 1) form.unknown("wrong number of operands");
  form.result(0, type);
  for (std::size_t k = 1; k <= sources; ++k) form.source(k, type);
  const bool single = type == Type::f32;
  form.instruction().kind = single ? InstructionClass::single : InstructionClass::dbl;
  return {type, single, single && form.take("ftz")};
}

struct Add {
  static constexpr std::size_t sources = 2;
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Subtract {
  static constexpr std::size_t sources = 2;
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Multiply {
  static constexpr std::size_t sources = 2;
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct MultiplyAdd {
  static constexpr std::size_t sources = 3;
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct Divide {
  static constexpr std::size_t sources = 2;
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Reciprocal {
  static constexpr std::size_t sources = 1;
  template <class T>
  T operator()(T a) const {
    return 1 / a;
  }
};
struct SquareRoot {
  static constexpr std::size_t sources = 1;
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};

// An operation that IEEE 754 rounds: to nearest as the host always does, in other directions after a switch for the
// row.
template <class Op, class T, bool ftz, bool sat, std::size_t... k>
Execute rounded(Form& form, Rounding rounding, std::index_sequence<k...>) {
  using Lane = decltype([](decltype(k, T{})... x) { return outcome<ftz, sat>(Op{}(input<ftz>(x)...)); });
  if (rounding == Rounding::nearest) return elementwise<T, decltype(k, T{})...>(Lane{});
  form.instruction().detail = static_cast<std::uint64_t>(rounding);
  return [](Warp& warp, const Instruction& i, LaneMask lanes) {
    const HostRounding host(static_cast<Rounding>(i.detail));
    elementwise<T, decltype(k, T{})...>(Lane{})(warp, i, lanes);
  };
}
template <class Op>
Execute decode_rounded(Form& form, Rounding rounding, bool sat = false) {
  const Shape shape = take_shape(form, Op::sources);
  constexpr auto sources = std::make_index_sequence<Op::sources>{};
  if (!shape.single && sat) form.unknown(".sat with .f64");
  if (!shape.single) return rounded<Op, double, false, false>(form, rounding, sources);
  if (shape.ftz && sat) return rounded<Op, float, true, true>(form, rounding, sources);
  if (shape.ftz) return rounded<Op, float, true, false>(form, rounding, sources);
  if (sat) return rounded<Op, float, false, true>(form, rounding, sources);
  return rounded<Op, float, false, false>(form, rounding, sources);
}
template <class Op>
Execute decode_arithmetic(Form& form) {
  const Rounding rounding = take_rounding(form).value_or(Rounding::nearest);
  return decode_rounded<Op>(form, rounding, form.take("sat"));
}
Rounding required_rounding(Form& form) {
  const auto rounding = take_rounding(form);
  if (!rounding) form.unknown("neither a rounding nor .approx");
  return *rounding;
}

// An approximation: f(x), computed in double and rounded once, lies within the documented error of every f32 form.
template <class F>
Execute decode_approximate(Form& form, F) {
  const Shape shape = take_shape(form, 1);
  if (!shape.single) form.unknown("no such form of .f64");
  form.instruction().kind = InstructionClass::special;
  if (shape.ftz)
    return elementwise<float, float>(
        [](float x) { return outcome<true, false>(static_cast<float>(F{}(flush(x)))); });
  return elementwise<float, float>([](float x) { return outcome<false, false>(static_cast<float>(F{}(x))); });
}
template <class F>
Execute decode_approximate_only(Form& form, F f) {
  if (!form.take("approx")) form.unknown("no .approx");
  return decode_approximate(form, f);
}

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 work on the upper words alone (PTX ISA 9.7.3.14, 9.7.3.17). A NaN whose
// payload lies in the lower word alone counts as infinite.
template <class F>
double of_upper_word(double x) {
  constexpr std::uint64_t upper = 0xffff'ffff'0000'0000, sign = std::uint64_t{1} << 63;
  const auto flush_upper = [](double value) {
    std::uint64_t bits = std::bit_cast<std::uint64_t>(value) & upper;
    if (std::fabs(value) < std::numeric_limits<double>::min()) bits &= sign;
    return std::bit_cast<double>(bits);
  };
  const double result = F{}(flush_upper(x));
  return result != result ? std::bit_cast<double>(0x7fff'ffff'0000'0000) : flush_upper(result);
}
template <class F>
Execute decode_upper_word(Form& form, F) {
  take_shape(form, 1);
  if (!form.take("ftz")) form.unknown("no such form of .f64");
  form.instruction().kind = InstructionClass::special;
  return elementwise<double, double>([](double x) { return of_upper_word<F>(x); });
}

// min and max: -0 < +0; a NaN gives way to a number unless .NaN; .xorsign.abs compares magnitudes and multiplies the
// signs.
template <class T>
constexpr T canonical_nan() {
  if constexpr (std::is_same_v<T, float>) return nan_f32;
  return std::bit_cast<double>(0x7fff'ffff'ffff'ffff);
}
template <bool maximum, class T>
T extremum(T a, T b) {
  if (a != a || b != b) return a == a ? a : b == b ? b : canonical_nan<T>();
  if (a == b) return std::signbit(a) == maximum ? b : a;  // differ at most in the signs of zeros
  return (a > b) == maximum ? a : b;
}
struct ExtremumOptions {
  bool ftz = false, nan = false, signs = false;
};
template <bool maximum>
float extremum(float a, float b, ExtremumOptions options) {
  if (options.ftz) a = flush(a), b = flush(b);
  if (options.nan && (a != a || b != b)) return nan_f32;
  if (!options.signs) return extremum<maximum>(a, b);
  const float magnitude = extremum<maximum>(std::fabs(a), std::fabs(b));
  return magnitude != magnitude ? magnitude : std::signbit(a) != std::signbit(b) ? -magnitude : magnitude;
}
template <bool maximum>
Execute decode_extremum(Form& form) {
  const Shape shape = take_shape(form, 2);
  if (!shape.single)
    return elementwise<double, double, double>([](double a, double b) { return extremum<maximum>(a, b); });
  const bool nan = form.take("NaN"), signs = form.take("xorsign");
  if (signs && !form.take("abs")) form.unknown(".xorsign without .abs");
  if (!shape.ftz && !nan && !signs)
    return elementwise<float, float, float>([](float a, float b) { return extremum<maximum>(a, b); });
  form.instruction().detail = shape.ftz | nan << 1 | signs << 2;
  return elementwise<float, float, float>([](const Instruction& i, float a, float b) {
    return extremum<maximum>(a, b, {(i.detail & 1) != 0, (i.detail & 2) != 0, (i.detail & 4) != 0});
  });
}

// neg and abs: any NaN of f32 becomes nan_f32; of f64 only the sign changes.
template <class F>
Execute decode_sign(Form& form, F) {
  const Shape shape = take_shape(form, 1);
  if (!shape.single) return elementwise<double, double>([](double x) { return F{}(x); });
  if (shape.ftz) return elementwise<float, float>([](float x) { return canonical(F{}(flush(x))); });
  return elementwise<float, float>([](float x) { return canonical(F{}(x)); });
}

template <class T, class Test>
void test_lanes(Warp& warp, const Instruction& i, LaneMask lanes) {
  const T* a = warp.source<T>(i, 1);
  LaneMask holds = 0;
  for_lanes(lanes, [&](int lane) { holds |= LaneMask{Test{}(a[lane])} << lane; });
  warp.set_predicate(i, 0, lanes, holds);
}
template <class Test>
Execute decode_test(Form& form, Test) {
  const Type type = form.take_type({Type::f32, Type::f64});
  form.result_predicate(0);
  form.source(1, type);
  form.instruction().kind = InstructionClass::compare;
  return type == Type::f32 ? test_lanes<float, Test> : test_lanes<double, Test>;
}

}  // namespace

Execute decode_float_add(Form& form) { return decode_arithmetic<Add>(form); }
Execute decode_float_sub(Form& form) { return decode_arithmetic<Subtract>(form); }
Execute decode_float_mul(Form& form) { return decode_arithmetic<Multiply>(form); }
Execute decode_float_fma(Form& form) {
  form.instruction().multiply_adds = 1;
  const Rounding rounding = required_rounding(form);
  return decode_rounded<MultiplyAdd>(form, rounding, form.take("sat"));
}

Execute decode_float_div(Form& form) {
  const bool full = form.take("full"), approximate = form.take("approx");
  if (!full && !approximate) return decode_rounded<Divide>(form, required_rounding(form));
  const Shape shape = take_shape(form, 2);
  if (!shape.single) form.unknown("no such form of .f64");
  form.instruction().kind = InstructionClass::special;
  if (full) {
    if (shape.ftz)
      return elementwise<float, float, float>(
          [](float a, float b) { return outcome<true, false>(flush(a) / flush(b)); });
    return elementwise<float, float, float>([](float a, float b) { return canonical(a / b); });
  }
  // The reciprocal of a b above 2^126 is subnormal and counts as zero.
  constexpr auto divide = [](float a, float b) {
    const bool vanishes = std::fabs(b) > 0x1p126f;
    return vanishes ? a * std::copysign(0.0f, b) : a / b;
  };
  using Approximate = decltype(divide);
  if (shape.ftz)
    return elementwise<float, float, float>(
        [](float a, float b) { return outcome<true, false>(Approximate{}(flush(a), flush(b))); });
  return elementwise<float, float, float>([](float a, float b) { return canonical(Approximate{}(a, b)); });
}

Execute decode_float_abs(Form& form) {
  return decode_sign(form, [](auto x) { return std::fabs(x); });
}
Execute decode_float_neg(Form& form) {
  return decode_sign(form, [](auto x) { return -x; });
}
Execute decode_float_min(Form& form) { return decode_extremum<false>(form); }
Execute decode_float_max(Form& form) { return decode_extremum<true>(form); }

Execute decode_rcp(Form& form) {
  if (!form.take("approx")) return decode_rounded<Reciprocal>(form, required_rounding(form));
  constexpr auto reciprocal = [](double x) { return 1 / x; };
  return form.has("f64") ? decode_upper_word(form, reciprocal) : decode_approximate(form, reciprocal);
}
Execute decode_sqrt(Form& form) {
  if (!form.take("approx")) return decode_rounded<SquareRoot>(form, required_rounding(form));
  return decode_approximate(form, [](double x) { return std::sqrt(x); });
}
Execute decode_rsqrt(Form& form) {
  if (!form.take("approx")) form.unknown("no .approx");
  constexpr auto reciprocal_root = [](double x) { return 1 / std::sqrt(x); };
  if (!form.has("f64")) return decode_approximate(form, reciprocal_root);
  if (form.has("ftz")) return decode_upper_word(form, reciprocal_root);
  take_shape(form, 1);
  form.instruction().kind = InstructionClass::special;
  return elementwise<double, double>(reciprocal_root);
}
Execute decode_sin(Form& form) {
  return decode_approximate_only(form, [](double x) { return std::sin(x); });
}
Execute decode_cos(Form& form) {
  return decode_approximate_only(form, [](double x) { return std::cos(x); });
}
Execute decode_lg2(Form& form) {
  return decode_approximate_only(form, [](double x) { return std::log2(x); });
}
Execute decode_float_ex2(Form& form) {
  return decode_approximate_only(form, [](double x) { return std::exp2(x); });
}
Execute decode_float_tanh(Form& form) {
  if (form.has("ftz")) form.unknown("tanh has no .ftz");
  return decode_approximate_only(form, [](double x) { return std::tanh(x); });
}

Execute decode_testp(Form& form) {
  if (form.take("finite")) return decode_test(form, [](auto x) { return std::isfinite(x); });
  if (form.take("infinite")) return decode_test(form, [](auto x) { return std::isinf(x); });
  if (form.take("number")) return decode_test(form, [](auto x) { return !std::isnan(x); });
  if (form.take("notanumber")) return decode_test(form, [](auto x) { return std::isnan(x); });
  if (form.take("normal")) return decode_test(form, [](auto x) { return std::isnormal(x) || x == 0; });
  if (form.take("subnormal"))
    return decode_test(form, [](auto x) { return std::fpclassify(x) == FP_SUBNORMAL; });
  form.unknown("no property");
}

Execute decode_copysign(Form& form) {
  const Shape shape = take_shape(form, 2);
  if (shape.single)
    return elementwise<float, float, float>(
        [](float sign, float value) { return std::copysign(value, sign); });
  return elementwise<double, double, double>(
      [](double sign, double value) { return std::copysign(value, sign); });
}

}  // namespace emulator

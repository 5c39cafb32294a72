#include "instructions/half.h"

#include <cmath>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"

// f16, bf16 and pairs of them (PTX ISA 9.7.4). Results that are NaN are nan_half.
namespace emulator {
namespace {

using ptx::Type;

struct F16 {
  static float widen(std::uint16_t bits) { return half_to_float(bits); }
  static std::uint16_t narrow(float x) { return float_to_half(x); }
  static constexpr std::uint16_t exponent = 0x7c00;
};
struct Bf16 {
  static float widen(std::uint16_t bits) { return bfloat_to_float(bits); }
  static std::uint16_t narrow(float x) { return float_to_bfloat(x); }
  static constexpr std::uint16_t exponent = 0x7f80;
};

constexpr std::uint16_t sign_bit = 0x8000;
template <class Format>
std::uint16_t flush_half(std::uint16_t bits) {
  return bits & Format::exponent ? bits : bits & sign_bit;
}

// What a modifier does to a result before it is rounded to 16 bits.
enum class Clamp : std::uint8_t { none, sat, relu };
template <Clamp clamp>
float clamped(float x) {
  if constexpr (clamp == Clamp::sat) return saturate(x);
  if constexpr (clamp == Clamp::relu) return x <= 0 ? 0.0f : x;
  return x;
}

// Takes the type and appends the operands: a result and `sources` sources.
struct Shape {
  bool bfloat, pair;
};
Shape take_shape(Form& form, std::size_t sources) {
  const Type type = form.take_type({Type::f16, Type::f16x2, Type::bf16, Type::bf16x2});
  if (form.operand_count() != sources + 1) form.unknown("wrong number of operands");
  form.result(0, type);
  for (std::size_t k = 1; k <= sources; ++k) form.source(k, type);
  form.instruction().kind = InstructionClass::half;
  return {type == Type::bf16 || type == Type::bf16x2, type == Type::f16x2 || type == Type::bf16x2};
}

// Op::lane<Format>(bits ...) -> bits, for one value or for both of a pair.
template <class Op, class Format, std::size_t... k>
Execute lanes_of(bool pair, std::index_sequence<k...>) {
  if (!pair)
    return elementwise<std::uint16_t, decltype(k, std::uint16_t{})...>(
        [](decltype(k, std::uint16_t{})... x) { return Op::template lane<Format>(x...); });
  return elementwise<std::uint32_t, decltype(k, std::uint32_t{})...>([](decltype(k, std::uint32_t{})... x) {
    const std::uint32_t low = Op::template lane<Format>(static_cast<std::uint16_t>(x)...);
    const std::uint32_t high = Op::template lane<Format>(static_cast<std::uint16_t>(x >> 16)...);
    return high << 16 | low;
  });
}
template <class Op>
Execute lanes_of(const Shape& shape) {
  constexpr auto sources = std::make_index_sequence<Op::sources>{};
  return shape.bfloat ? lanes_of<Op, Bf16>(shape.pair, sources) : lanes_of<Op, F16>(shape.pair, sources);
}

// Sums and products are rounded to f32, then to 16 bits. The first rounding does not show: f32 has at least twice as
// many bits and two more. For fma it would; so the f32 in between is rounded to odd.
struct Add {
  static constexpr std::size_t sources = 2;
  static float of(float a, float b) { return a + b; }
};
struct Subtract {
  static constexpr std::size_t sources = 2;
  static float of(float a, float b) { return a - b; }
};
struct Multiply {
  static constexpr std::size_t sources = 2;
  static float of(float a, float b) { return a * b; }
};
struct MultiplyAdd {
  static constexpr std::size_t sources = 3;
  static float of(float a, float b, float c) { return fma_to_odd(a, b, c); }
};
template <class Arithmetic, bool ftz, Clamp clamp>
struct Rounded {
  static constexpr std::size_t sources = Arithmetic::sources;
  template <class Format, class... A>
  static std::uint16_t lane(A... bits) {
    if constexpr (ftz) {
      const float x = Arithmetic::of(Format::widen(flush_half<Format>(bits))...);
      return flush_half<Format>(Format::narrow(clamped<clamp>(x)));
    } else {
      return Format::narrow(clamped<clamp>(Arithmetic::of(Format::widen(bits)...)));
    }
  }
};
template <class Arithmetic, Clamp clamp>
Execute decode_clamped(Form& form, const Shape& shape) {
  const bool ftz = !shape.bfloat && form.take("ftz");
  return ftz ? lanes_of<Rounded<Arithmetic, true, clamp>>(shape)
             : lanes_of<Rounded<Arithmetic, false, clamp>>(shape);
}
template <class Arithmetic>
Execute decode_arithmetic(Form& form) {
  const Shape shape = take_shape(form, Arithmetic::sources);
  form.take("rn");
  if constexpr (Arithmetic::sources == 3) {
    form.instruction().multiply_adds = shape.pair ? 2 : 1;
    if (form.take("relu")) return decode_clamped<Arithmetic, Clamp::relu>(form, shape);
  }
  if (!shape.bfloat && form.take("sat")) return decode_clamped<Arithmetic, Clamp::sat>(form, shape);
  return decode_clamped<Arithmetic, Clamp::none>(form, shape);
}

template <class Format>
bool is_nan(std::uint16_t bits) {
  return (bits & 0x7fff) > Format::exponent;
}

// neg and abs: the sign changes; any NaN becomes nan_half.
template <bool negate, bool ftz>
struct Sign {
  static constexpr std::size_t sources = 1;
  template <class Format>
  static std::uint16_t lane(std::uint16_t bits) {
    if (is_nan<Format>(bits)) return nan_half;
    if constexpr (ftz) bits = flush_half<Format>(bits);
    return negate ? bits ^ sign_bit : bits & ~sign_bit;
  }
};
template <bool negate>
Execute decode_sign(Form& form) {
  const Shape shape = take_shape(form, 1);
  const bool ftz = !shape.bfloat && form.take("ftz");
  return ftz ? lanes_of<Sign<negate, true>>(shape) : lanes_of<Sign<negate, false>>(shape);
}

// min and max: -0 < +0; a NaN gives way to a number unless .NaN; .xorsign.abs compares magnitudes and multiplies the
// signs.
template <bool maximum, bool ftz, bool nan, bool signs>
struct Extremum {
  static constexpr std::size_t sources = 2;
  // The order of numbers as integers.
  static int key(std::uint16_t bits) { return bits & sign_bit ? -(bits & 0x7fff) - 1 : bits; }
  template <class Format>
  static std::uint16_t lane(std::uint16_t a, std::uint16_t b) {
    const bool a_nan = is_nan<Format>(a), b_nan = is_nan<Format>(b);
    if ((a_nan && b_nan) || (nan && (a_nan || b_nan))) return nan_half;
    if constexpr (ftz) a = flush_half<Format>(a), b = flush_half<Format>(b);
    const std::uint16_t sign = (a ^ b) & sign_bit;
    if constexpr (signs) a &= ~sign_bit, b &= ~sign_bit;
    std::uint16_t result;
    if (a_nan || b_nan) {
      result = a_nan ? b : a;
    } else {
      result = (key(a) > key(b)) == maximum ? a : b;
    }
    return signs ? result | sign : result;
  }
};
template <bool maximum, bool ftz, bool nan>
Execute decode_extremum_signs(const Shape& shape, bool signs) {
  return signs ? lanes_of<Extremum<maximum, ftz, nan, true>>(shape)
               : lanes_of<Extremum<maximum, ftz, nan, false>>(shape);
}
template <bool maximum>
Execute decode_extremum(Form& form) {
  const Shape shape = take_shape(form, 2);
  const bool ftz = !shape.bfloat && form.take("ftz");
  const bool nan = form.take("NaN"), signs = form.take("xorsign");
  if (signs && !form.take("abs")) form.unknown(".xorsign without .abs");
  if (ftz && nan) return decode_extremum_signs<maximum, true, true>(shape, signs);
  if (ftz) return decode_extremum_signs<maximum, true, false>(shape, signs);
  if (nan) return decode_extremum_signs<maximum, false, true>(shape, signs);
  return decode_extremum_signs<maximum, false, false>(shape, signs);
}

// tanh and ex2: computed in double, rounded once.
struct Tanh {
  static double of(double x) { return std::tanh(x); }
};
struct Exponential {
  static double of(double x) { return std::exp2(x); }
};
template <class Function, bool ftz>
struct Approximate {
  static constexpr std::size_t sources = 1;
  template <class Format>
  static std::uint16_t lane(std::uint16_t bits) {
    if constexpr (ftz) bits = flush_half<Format>(bits);
    const std::uint16_t result = Format::narrow(to_odd(Function::of(Format::widen(bits))));
    return ftz ? flush_half<Format>(result) : result;
  }
};

}  // namespace

Execute decode_half_add(Form& form) { return decode_arithmetic<Add>(form); }
Execute decode_half_sub(Form& form) { return decode_arithmetic<Subtract>(form); }
Execute decode_half_mul(Form& form) { return decode_arithmetic<Multiply>(form); }
Execute decode_half_fma(Form& form) { return decode_arithmetic<MultiplyAdd>(form); }
Execute decode_half_neg(Form& form) { return decode_sign<true>(form); }
Execute decode_half_abs(Form& form) { return decode_sign<false>(form); }
Execute decode_half_min(Form& form) { return decode_extremum<false>(form); }
Execute decode_half_max(Form& form) { return decode_extremum<true>(form); }

Execute decode_half_tanh(Form& form) {
  if (!form.take("approx")) form.unknown("no .approx");
  const Shape shape = take_shape(form, 1);
  form.instruction().kind = InstructionClass::special;
  return lanes_of<Approximate<Tanh, false>>(shape);
}
Execute decode_half_ex2(Form& form) {
  if (!form.take("approx")) form.unknown("no .approx");
  const Shape shape = take_shape(form, 1);
  if (shape.bfloat && !form.take("ftz")) form.unknown("ex2 of .bf16 without .ftz");
  form.instruction().kind = InstructionClass::special;
  return shape.bfloat ? lanes_of<Approximate<Exponential, true>>(shape)
                      : lanes_of<Approximate<Exponential, false>>(shape);
}

}  // namespace emulator

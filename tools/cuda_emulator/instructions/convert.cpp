#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"
#include "instructions/float8.h"
#include "instructions/half.h"

// cvt (PTX ISA 9.7.9.21) and cvt.pack (9.7.9.22). NaN results are canonical but for f64.
namespace emulator {
namespace {

using ptx::Type;

/// The bits of an f16 and of a bf16.
enum class Half : std::uint16_t {};
enum class Bfloat : std::uint16_t {};

/// Modifiers and widths of the registers in bytes; kept in Instruction::detail.
struct Options {
  Rounding rounding = Rounding::nearest;
  bool integral = false;  ///< .rni, .rzi, .rmi, .rpi
  bool ftz = false, sat = false, relu = false, satfinite = false;
  std::uint8_t result_bytes = 0, source_bytes = 0;
};
static_assert(sizeof(Options) == sizeof(Instruction::detail));
Options options_of(const Instruction& i) { return std::bit_cast<Options>(i.detail); }

template <class T>
constexpr bool is_16_bit_float = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

// f32 holds every value of the 16-bit types.
float widen(Half x) { return half_to_float(static_cast<std::uint16_t>(x)); }
float widen(Bfloat x) { return bfloat_to_float(static_cast<std::uint16_t>(x)); }
float widen(float x) { return x; }
double widen(double x) { return x; }

template <class D>
D narrow(float x, Rounding rounding) {
  if constexpr (std::is_same_v<D, Half>) return Half{float_to_half(x, rounding)};
  if constexpr (std::is_same_v<D, Bfloat>) return Bfloat{float_to_bfloat(x, rounding)};
  if constexpr (std::is_same_v<D, float>) return canonical(x);
  if constexpr (std::is_same_v<D, double>) return x;
}
template <class D>
D narrow(double x, Rounding rounding) {
  if constexpr (is_16_bit_float<D>) return narrow<D>(to_odd(x), rounding);
  if constexpr (std::is_same_v<D, float>) return canonical(to_float(x, rounding));
  if constexpr (std::is_same_v<D, double>) return x;
}

template <class D>
constexpr int significand_bits = std::is_same_v<D, Half>     ? 11
                                 : std::is_same_v<D, Bfloat> ? 8
                                 : std::is_same_v<D, float>  ? 24
                                                             : 53;

// An integer with all but its `bits` highest bits rounded away. Exact in double.
double rounded_integer(bool negative, std::uint64_t magnitude, int bits, Rounding rounding) {
  const int excess = std::bit_width(magnitude) - bits;
  if (excess > 0) {
    const std::uint64_t rest = magnitude & ((std::uint64_t{1} << excess) - 1),
                        half = std::uint64_t{1} << (excess - 1);
    magnitude >>= excess;
    const bool up = rounding == Rounding::nearest ? rest > half || (rest == half && (magnitude & 1))
                    : rounding == Rounding::up    ? rest && !negative
                    : rounding == Rounding::down  ? rest && negative
                                                  : false;
    magnitude += up;
  }
  const double value = std::ldexp(static_cast<double>(magnitude), std::max(excess, 0));
  return negative ? -value : value;
}

template <class T>
T integral(T x, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero:
      return std::trunc(x);
    case Rounding::down:
      return std::floor(x);
    case Rounding::up:
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

template <class D, class S>
D to_integer(S x, Options options) {
  if constexpr (std::is_integral_v<S>) {
    if (!options.sat) return static_cast<D>(x);
    if (std::cmp_less(x, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (std::cmp_greater(x, std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    return static_cast<D>(x);
  } else {
    if constexpr (std::is_same_v<S, float>)
      if (options.ftz) x = flush(x);
    const double value = widen(x);
    if (value != value) {
      constexpr bool zero = !std::is_same_v<S, double> && sizeof(D) < 8;
      return zero ? D{0} : static_cast<D>(std::uint64_t{1} << (sizeof(D) * 8 - 1));
    }
    const double whole = integral<double>(value, options.rounding);
    constexpr double least = static_cast<double>(std::numeric_limits<D>::min());
    constexpr double beyond =
        2 * static_cast<double>(std::uint64_t{1} << (std::numeric_limits<D>::digits - 1));
    if (whole < least) return std::numeric_limits<D>::min();
    if (whole >= beyond) return std::numeric_limits<D>::max();
    return static_cast<D>(whole);
  }
}

template <class D, class S>
D to_floating(S x, Options options) {
  if constexpr (std::is_integral_v<S>) {
    if constexpr (!is_16_bit_float<D>)
      if (options.rounding == Rounding::nearest && !options.sat) return static_cast<D>(x);
    const bool negative = x < 0;
    const auto magnitude = negative ? -static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
    const double value = rounded_integer(negative, magnitude, significand_bits<D>, options.rounding);
    return narrow<D>(options.sat ? saturate(value) : value, options.rounding);
  } else {
    if constexpr (std::is_same_v<S, float>)
      if (options.ftz) x = flush(x);
    auto value = widen(x);
    if (options.integral) value = integral(value, options.rounding);
    if (options.sat) value = saturate(value);
    if (options.relu && value <= 0) value = 0;
    D result = narrow<D>(value, options.rounding);
    if constexpr (std::is_same_v<D, float>)
      if (options.ftz) result = flush(result);
    if constexpr (is_16_bit_float<D>) {
      constexpr std::uint16_t infinity = std::is_same_v<D, Half> ? 0x7c00 : 0x7f80;
      const auto bits = static_cast<std::uint16_t>(result);
      if (options.satfinite && (bits & 0x7fff) == infinity) result = static_cast<D>(bits - 1);
    }
    return result;
  }
}

template <class D, class S>
D convert(S x, Options options) {
  if constexpr (std::is_integral_v<D>) {
    return to_integer<D>(x, options);
  } else {
    return to_floating<D>(x, options);
  }
}

// Registers may be wider than the types: the source's low bytes count, the result is extended by its own sign.
template <class D, class S>
void convert_wide(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Options options = options_of(i);
  const std::byte* source = warp.source<std::byte>(i, 1);
  std::byte* result = warp.result<std::byte>(i, 0);
  for_lanes(lanes, [&](int lane) {
    S x;
    std::memcpy(&x, source + lane * options.source_bytes, sizeof x);
    const D y = convert<D>(x, options);
    std::uint64_t extended = 0;
    if constexpr (std::is_integral_v<D>) {
      extended = static_cast<std::uint64_t>(y);
    } else {
      std::memcpy(&extended, &y, sizeof y);
    }
    std::memcpy(result + lane * options.result_bytes, &extended, options.result_bytes);
  });
}

template <class D, class S>
constexpr Options usual() {
  Options options;
  if constexpr (std::is_integral_v<D> && !std::is_integral_v<S>) {
    options.integral = true;
    options.rounding = Rounding::zero;
  }
  return options;
}

template <class D, class S>
Execute conversion(Options options) {
  if (options.result_bytes != sizeof(D) || options.source_bytes != sizeof(S)) return convert_wide<D, S>;
  Options expected = usual<D, S>();
  expected.result_bytes = options.result_bytes;
  expected.source_bytes = options.source_bytes;
  if (std::bit_cast<std::uint64_t>(expected) == std::bit_cast<std::uint64_t>(options))
    return elementwise<D, S>([](S x) { return convert<D>(x, usual<D, S>()); });
  return elementwise<D, S>([](const Instruction& i, S x) { return convert<D>(x, options_of(i)); });
}

template <class Visit>
Execute for_type(Type type, Form& form, Visit visit) {
  switch (type) {
    case Type::u8:
      return visit.template operator()<std::uint8_t>();
    case Type::s8:
      return visit.template operator()<std::int8_t>();
    case Type::u16:
      return visit.template operator()<std::uint16_t>();
    case Type::s16:
      return visit.template operator()<std::int16_t>();
    case Type::u32:
      return visit.template operator()<std::uint32_t>();
    case Type::s32:
      return visit.template operator()<std::int32_t>();
    case Type::u64:
      return visit.template operator()<std::uint64_t>();
    case Type::s64:
      return visit.template operator()<std::int64_t>();
    case Type::f16:
      return visit.template operator()<Half>();
    case Type::bf16:
      return visit.template operator()<Bfloat>();
    case Type::f32:
      return visit.template operator()<float>();
    case Type::f64:
      return visit.template operator()<double>();
    default:
      form.unknown("no type that cvt converts");
  }
}

bool is_floating(Type type) {
  return type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64;
}

// .rn ... .rp round a result to its type, .rni ... .rpi to an integer.
struct TakenRounding {
  bool present = false, integral = false;
  Rounding rounding = Rounding::nearest;
};
TakenRounding take_conversion_rounding(Form& form) {
  if (const auto rounding = take_rounding(form)) return {true, false, *rounding};
  const std::string_view name = form.take_one_of({"rni", "rzi", "rmi", "rpi"});
  if (name.empty()) return {};
  return {true, true,
          name == "rni"   ? Rounding::nearest
          : name == "rzi" ? Rounding::zero
          : name == "rmi" ? Rounding::down
                          : Rounding::up};
}

void check_rounding(Form& form, Type d, Type s, TakenRounding taken) {
  const bool to_float_type = is_floating(d), from_float_type = is_floating(s);
  if (from_float_type && !to_float_type && !taken.integral) form.unknown("no rounding to an integer");
  if (taken.integral && (!from_float_type || (to_float_type && d != s)))
    form.unknown("rounding to an integer has no meaning here");
  const bool inexact = to_float_type && (!from_float_type || bytes_of(d) < bytes_of(s) ||
                                         (d != s && bytes_of(d) == bytes_of(s)));
  if (inexact && !taken.present) form.unknown("no rounding");
  if (!to_float_type && !from_float_type && taken.present) form.unknown("rounding of integers");
}

Execute decode_scalar(Form& form, TakenRounding taken) {
  Options options{taken.rounding, taken.integral};
  const Type d = form.take_type(), s = form.take_type();
  if (form.operand_count() != 2) form.unknown("wrong number of operands");
  check_rounding(form, d, s, taken);
  options.sat = form.take("sat");
  if (d == Type::f32 || s == Type::f32) options.ftz = form.take("ftz");
  if ((d == Type::f16 || d == Type::bf16) && s == Type::f32) {
    options.relu = form.take("relu");
    options.satfinite = form.take("satfinite");
  }
  options.result_bytes = static_cast<std::uint8_t>(form.wide_result(0, d));
  options.source_bytes = static_cast<std::uint8_t>(form.wide_source(1, s));
  form.instruction().detail = std::bit_cast<std::uint64_t>(options);
  return for_type(d, form, [&]<class D>() {
    return for_type(s, form, [&]<class S>() { return conversion<D, S>(options); });
  });
}

// cvt.{rn,rz}{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b: a becomes the upper half.
template <class D>
Execute decode_pair_of(Form& form, Options options) {
  form.instruction().detail = std::bit_cast<std::uint64_t>(options);
  if (std::bit_cast<std::uint64_t>(options) == std::bit_cast<std::uint64_t>(Options{}))
    return elementwise<std::uint32_t, float, float>([](float a, float b) {
      const auto high = static_cast<std::uint32_t>(convert<D>(a, Options{}));
      return high << 16 | static_cast<std::uint32_t>(convert<D>(b, Options{}));
    });
  return elementwise<std::uint32_t, float, float>([](const Instruction& i, float a, float b) {
    const auto high = static_cast<std::uint32_t>(convert<D>(a, options_of(i)));
    return high << 16 | static_cast<std::uint32_t>(convert<D>(b, options_of(i)));
  });
}
Execute decode_pair(Form& form, Options options) {
  const Type type = form.take_type({Type::f16x2, Type::bf16x2});
  form.take_type({Type::f32});
  if (form.operand_count() != 3) form.unknown("wrong number of operands");
  options.relu = form.take("relu");
  options.satfinite = form.take("satfinite");
  form.result(0, type);
  form.source(1, Type::f32);
  form.source(2, Type::f32);
  return type == Type::f16x2 ? decode_pair_of<Half>(form, options) : decode_pair_of<Bfloat>(form, options);
}

Execute decode_tf32(Form& form, Options options) {
  form.take_type({Type::tf32});
  form.take_type({Type::f32});
  if (form.operand_count() != 2) form.unknown("wrong number of operands");
  options.relu = form.take("relu");
  options.satfinite = form.take("satfinite");
  form.result(0, Type::b32);
  form.source(1, Type::f32);
  form.instruction().detail = std::bit_cast<std::uint64_t>(options);
  return elementwise<float, float>([](const Instruction& i, float x) {
    const Options o = options_of(i);
    if (o.relu && x <= 0) x = 0;
    const float result = float_to_tf32(x, o.rounding);
    return o.satfinite && std::isinf(result) ? std::copysign(std::bit_cast<float>(0x7f7fe000u), result)
                                             : result;
  });
}

// Pairs of 8-bit floating values: from two f32, from f16x2 and to f16x2.
struct E4m3 {
  static std::uint8_t narrow(double x) { return float_to_e4m3(x); }
  static std::uint16_t widen(std::uint8_t bits) { return e4m3_to_half(bits); }
};
struct E5m2 {
  static std::uint8_t narrow(double x) { return float_to_e5m2(x); }
  static std::uint16_t widen(std::uint8_t bits) { return e5m2_to_half(bits); }
};
template <class Format>
std::uint16_t narrow_pair(double high, double low, bool relu) {
  if (relu && high <= 0) high = 0;
  if (relu && low <= 0) low = 0;
  return static_cast<std::uint16_t>(Format::narrow(high) << 8 | Format::narrow(low));
}
template <class Format>
Execute decode_to_float8(Form& form) {
  if (!form.take("satfinite")) form.unknown("no .satfinite");
  const bool relu = form.take("relu");
  form.instruction().detail = relu;
  const Type source = form.take_type({Type::f32, Type::f16x2});
  const std::size_t sources = source == Type::f32 ? 2 : 1;
  if (form.operand_count() != sources + 1) form.unknown("wrong number of operands");
  form.result(0, Type::b16);
  for (std::size_t k = 1; k <= sources; ++k) form.source(k, source);
  if (source == Type::f32)
    return elementwise<std::uint16_t, float, float>(
        [](const Instruction& i, float a, float b) { return narrow_pair<Format>(a, b, i.detail != 0); });
  return elementwise<std::uint16_t, std::uint32_t>([](const Instruction& i, std::uint32_t a) {
    return narrow_pair<Format>(half_to_float(static_cast<std::uint16_t>(a >> 16)),
                               half_to_float(static_cast<std::uint16_t>(a)), i.detail != 0);
  });
}
template <class Format>
Execute decode_from_float8(Form& form) {
  form.take_type({Type::f16x2});
  if (form.operand_count() != 2) form.unknown("wrong number of operands");
  form.instruction().detail = form.take("relu");
  form.result(0, Type::f16x2);
  form.source(1, Type::b16);
  return elementwise<std::uint32_t, std::uint16_t>([](const Instruction& i, std::uint16_t a) {
    const auto one = [&](int byte) -> std::uint32_t {
      const std::uint16_t half = Format::widen(static_cast<std::uint8_t>(a >> 8 * byte));
      return i.detail && half & 0x8000 ? 0 : half;  // a NaN has lost its sign
    };
    return one(1) << 16 | one(0);
  });
}
template <class Format>
Execute decode_float8(Form& form, std::string_view name, TakenRounding taken) {
  if (!taken.present || taken.integral || taken.rounding != Rounding::nearest)
    form.unknown("rounding is not .rn");
  const std::vector<std::string>& modifiers =
      form.statement().modifiers;  // the result's type stands before the source's
  const bool widens = std::ranges::find(modifiers, "f16x2") < std::ranges::find(modifiers, name);
  return widens ? decode_from_float8<Format>(form) : decode_to_float8<Format>(form);
}

// cvt.pack.sat.T.s32{.b32} d, a, b{, c}: {c's low bits, a, b} from the highest bits down, a and b clamped to T.
Execute decode_pack(Form& form) {
  if (!form.take("sat")) form.unknown("no .sat");
  const std::string_view name = form.take_one_of({"u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"});
  if (name.empty()) form.unknown("no type to pack");
  form.take_type({Type::s32});
  const std::uint32_t bits = name == "u16" || name == "s16" ? 16 : static_cast<std::uint32_t>(name[1] - '0');
  const bool is_signed = name[0] == 's', fills = bits < 16;
  if (fills) form.take_type({Type::b32});
  if (form.operand_count() != (fills ? 4 : 3)) form.unknown("wrong number of operands");
  form.result(0, Type::u32);
  form.source(1, Type::s32);
  form.source(2, Type::s32);
  if (fills) {
    form.source(3, Type::b32);
  } else {
    form.constant(Type::b32, 0);
  }
  form.instruction().detail = bits | std::uint64_t{is_signed} << 32;
  return elementwise<std::uint32_t, std::int32_t, std::int32_t, std::uint32_t>(
      [](const Instruction& i, std::int32_t a, std::int32_t b, std::uint32_t c) {
        const auto width = static_cast<std::uint32_t>(i.detail);
        const bool has_sign = i.detail >> 32;
        const std::int32_t largest = (1 << (width - has_sign)) - 1, least = has_sign ? -largest - 1 : 0;
        const std::uint32_t mask = (1u << width) - 1;
        const auto field = [&](std::int32_t x) {
          return static_cast<std::uint32_t>(std::clamp(x, least, largest)) & mask;
        };
        const std::uint32_t rest = width < 16 ? c << 2 * width : 0;
        return rest | field(a) << width | field(b);
      });
}

}  // namespace

Execute decode_cvt(Form& form) {
  form.instruction().kind = InstructionClass::convert;
  if (form.take("pack")) return decode_pack(form);
  const TakenRounding taken = take_conversion_rounding(form);
  if (form.take("e4m3x2")) return decode_float8<E4m3>(form, "e4m3x2", taken);
  if (form.take("e5m2x2")) return decode_float8<E5m2>(form, "e5m2x2", taken);
  Options options{taken.rounding};
  const auto narrow_rounding = [&] {
    if (!taken.present || taken.integral ||
        (taken.rounding != Rounding::nearest && taken.rounding != Rounding::zero))
      form.unknown("rounding is neither .rn nor .rz");
  };
  if (form.has("tf32")) {
    if (form.take("rna")) {
      options.rounding = Rounding::away;
    } else {
      narrow_rounding();
    }
    return decode_tf32(form, options);
  }
  if (form.has("f16x2") || form.has("bf16x2")) {
    narrow_rounding();
    return decode_pair(form, options);
  }
  return decode_scalar(form, taken);
}

}  // namespace emulator

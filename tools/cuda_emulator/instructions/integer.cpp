#include <algorithm>
#include <limits>
#include <type_traits>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"

// Integer arithmetic (PTX ISA 9.7.1) and extended precision (9.7.2). Sums and products wrap; they are
// computed unsigned.
namespace emulator {
namespace {

using ptx::Type;
using Types = std::initializer_list<Type>;

constexpr Types all_types{Type::u16, Type::s16, Type::u32, Type::s32, Type::u64, Type::s64};
constexpr Types packed_and_all_types{Type::u16, Type::s16, Type::u32,   Type::s32,
                                     Type::u64, Type::s64, Type::u16x2, Type::s16x2};
constexpr Types narrow_types{Type::u16, Type::s16, Type::u32, Type::s32};
constexpr Types signed_types{Type::s16, Type::s32, Type::s64};
constexpr Types words{Type::u32, Type::s32};
constexpr Types carry_types{Type::u32, Type::s32, Type::u64, Type::s64};
constexpr Types only_s32{Type::s32};

template <class T>
struct Widened;
template <>
struct Widened<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct Widened<std::int16_t> {
  using type = std::int32_t;
};
template <>
struct Widened<std::uint32_t> {
  using type = std::uint64_t;
};
template <>
struct Widened<std::int32_t> {
  using type = std::int64_t;
};
template <>
struct Widened<std::uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Widened<std::int64_t> {
  using type = __int128;
};
/// Twice as wide, of the same sign.
template <class T>
using Wide = typename Widened<T>::type;

/// Unsigned and at least as wide as T, so that C++ does not promote operands to int, whose overflow is
/// undefined.
template <class T>
using Bits = std::conditional_t<sizeof(T) < 4, std::uint32_t, std::make_unsigned_t<T>>;

template <class T>
T wrapping_add(T a, T b) {
  return static_cast<T>(static_cast<Bits<T>>(a) + static_cast<Bits<T>>(b));
}
template <class T>
T wrapping_sub(T a, T b) {
  return static_cast<T>(static_cast<Bits<T>>(a) - static_cast<Bits<T>>(b));
}
template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<Bits<T>>(a) * static_cast<Bits<T>>(b));
}
template <class T>
Wide<T> wide_product(T a, T b) {
  return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
}
template <class T>
T high_product(T a, T b) {
  return static_cast<T>(wide_product(a, b) >> (8 * sizeof(T)));
}

std::int32_t saturate(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, std::numeric_limits<std::int32_t>::min(),
                                                            std::numeric_limits<std::int32_t>::max()));
}

/// The 24 low bits as a number of the type.
template <class T>
std::int64_t low_24_bits(T a) {
  const auto bits = static_cast<std::uint32_t>(a) << 8;
  if constexpr (std::is_signed_v<T>) return static_cast<std::int32_t>(bits) >> 8;
  return bits >> 8;
}

template <class T>
T half(std::uint32_t pair, int which) {
  return static_cast<T>(pair >> (16 * which));
}
template <class T>
T byte(std::uint32_t word, int which) {
  using Byte = std::conditional_t<std::is_signed_v<T>, std::int8_t, std::uint8_t>;
  return static_cast<Byte>(word >> (8 * which));
}
std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) { return (low & 0xffff) | high << 16; }

Type twice_as_wide(Type type) {
  switch (type) {
    case Type::u16:
      return Type::u32;
    case Type::s16:
      return Type::s32;
    case Type::u32:
      return Type::u64;
    default:
      return Type::s64;
  }
}

bool is_packed(Type type) { return type == Type::u16x2 || type == Type::s16x2; }

/// Appends operand 0 as the result and `sources` operands after it, all of the type.
void operands_of_type(Form& form, Type type, std::size_t sources) {
  form.instruction().kind = InstructionClass::integer;
  form.result(0, type);
  for (std::size_t operand = 1; operand <= sources; ++operand) form.source(operand, type);
}

/// A word of each source, whose function is lane-wise over u32 rows.
template <class F>
Execute on_words(F function) {
  return elementwise<std::uint32_t, std::uint32_t, std::uint32_t>(function);
}

enum class Half : std::uint8_t { lo, hi, wide };
Half take_half(Form& form, bool may_be_wide) {
  if (may_be_wide && form.take("wide")) return Half::wide;
  if (form.take("hi")) return Half::hi;
  if (form.take("lo")) return Half::lo;
  form.unknown(may_be_wide ? "one of .lo, .hi and .wide is missing" : "one of .lo and .hi is missing");
}

// Carry chains. The carry flag of a thread is a bit of Warp::carry.

struct AddCarry {
  template <class U>
  static U compute(U x, U y, bool carry_in, bool& carry_out) {
    const U sum = x + y, result = sum + U{carry_in};
    carry_out = sum < x || result < sum;
    return result;
  }
};
struct SubtractBorrow {
  template <class U>
  static U compute(U x, U y, bool borrow_in, bool& borrow_out) {
    const U difference = x - y;
    borrow_out = x < y || difference < U{borrow_in};
    return difference - U{borrow_in};
  }
};
struct LowProduct {
  template <class T>
  static T compute(T a, T b) {
    return low_product(a, b);
  }
};
struct HighProduct {
  template <class T>
  static T compute(T a, T b) {
    return high_product(a, b);
  }
};

/// Sum: AddCarry or SubtractBorrow of the sources, or of Product (unless void) of the first two and the
/// third.
template <class T, class Sum, class Product, bool carry_in, bool carry_out>
void carry_step(Warp& warp, const Instruction& i, LaneMask lanes) {
  using U = std::make_unsigned_t<T>;
  constexpr bool multiplies = !std::is_void_v<Product>;
  T* d = warp.result<T>(i, 0);
  const T *a = warp.source<T>(i, 1), *b = warp.source<T>(i, 2);
  [[maybe_unused]] const T* c = multiplies ? warp.source<T>(i, 3) : nullptr;
  const LaneMask flags = warp.carry;
  LaneMask carried = 0;
  for_lanes(lanes, [&](int lane) {
    const bool in = carry_in && (flags >> lane & 1);
    bool out;
    if constexpr (multiplies) {
      d[lane] = static_cast<T>(Sum::template compute<U>(
          static_cast<U>(Product::template compute<T>(a[lane], b[lane])), static_cast<U>(c[lane]), in, out));
    } else {
      d[lane] =
          static_cast<T>(Sum::template compute<U>(static_cast<U>(a[lane]), static_cast<U>(b[lane]), in, out));
    }
    carried |= LaneMask{out} << lane;
  });
  if constexpr (carry_out) warp.carry = (flags & ~lanes) | carried;
}

template <class Sum, class Product>
Execute carry_chain(Form& form, bool carry_in) {
  const bool carry_out = form.take("cc");
  const Type type = form.take_type(carry_types);
  operands_of_type(form, type, std::is_void_v<Product> ? 2 : 3);
  return for_integer(type, form, [&]<class T>() -> Execute {
    if (carry_in)
      return carry_out ? carry_step<T, Sum, Product, true, true> : carry_step<T, Sum, Product, true, false>;
    return carry_step<T, Sum, Product, false, true>;
  });
}

Execute multiply_with_carry(Form& form, bool carry_in) {
  return take_half(form, false) == Half::lo ? carry_chain<AddCarry, LowProduct>(form, carry_in)
                                            : carry_chain<AddCarry, HighProduct>(form, carry_in);
}

}  // namespace

Execute decode_integer_add(Form& form) {
  if (form.has("cc")) return carry_chain<AddCarry, void>(form, false);
  const bool saturates = form.take("sat");
  const Type type = form.take_type(saturates ? only_s32 : packed_and_all_types);
  operands_of_type(form, type, 2);
  if (saturates)
    return elementwise<std::int32_t, std::int32_t, std::int32_t>(
        [](std::int32_t a, std::int32_t b) { return saturate(std::int64_t{a} + b); });
  if (is_packed(type))
    return on_words([](std::uint32_t a, std::uint32_t b) { return pair_of(a + b, (a >> 16) + (b >> 16)); });
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T>([](T a, T b) { return wrapping_add(a, b); });
  });
}

Execute decode_integer_sub(Form& form) {
  if (form.has("cc")) return carry_chain<SubtractBorrow, void>(form, false);
  const bool saturates = form.take("sat");
  const Type type = form.take_type(saturates ? only_s32 : all_types);
  operands_of_type(form, type, 2);
  if (saturates)
    return elementwise<std::int32_t, std::int32_t, std::int32_t>(
        [](std::int32_t a, std::int32_t b) { return saturate(std::int64_t{a} - b); });
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T>([](T a, T b) { return wrapping_sub(a, b); });
  });
}

Execute decode_addc(Form& form) { return carry_chain<AddCarry, void>(form, true); }
Execute decode_subc(Form& form) { return carry_chain<SubtractBorrow, void>(form, true); }
Execute decode_madc(Form& form) { return multiply_with_carry(form, true); }

Execute decode_integer_mul(Form& form) {
  const Half half_wanted = take_half(form, true);
  const Type type = form.take_type(half_wanted == Half::wide ? narrow_types : all_types);
  form.instruction().kind = InstructionClass::integer;
  form.result(0, half_wanted == Half::wide ? twice_as_wide(type) : type);
  form.source(1, type);
  form.source(2, type);
  return for_integer(type, form, [&]<class T>() -> Execute {
    switch (half_wanted) {
      case Half::lo:
        return elementwise<T, T, T>([](T a, T b) { return low_product(a, b); });
      case Half::hi:
        return elementwise<T, T, T>([](T a, T b) { return high_product(a, b); });
      case Half::wide:
        break;
    }
    return elementwise<Wide<T>, T, T>([](T a, T b) { return wide_product(a, b); });
  });
}

Execute decode_integer_mad(Form& form) {
  if (form.has("cc")) return multiply_with_carry(form, false);
  const Half half_wanted = take_half(form, true);
  const bool saturates = half_wanted == Half::hi && form.take("sat");
  const Type type = form.take_type(saturates                   ? only_s32
                                   : half_wanted == Half::wide ? narrow_types
                                                               : all_types);
  const Type sum_type = half_wanted == Half::wide ? twice_as_wide(type) : type;
  form.instruction().kind = InstructionClass::integer;
  form.result(0, sum_type);
  form.source(1, type);
  form.source(2, type);
  form.source(3, sum_type);
  if (saturates)
    return elementwise<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(
        [](std::int32_t a, std::int32_t b, std::int32_t c) {
          return saturate(std::int64_t{high_product(a, b)} + c);
        });
  return for_integer(type, form, [&]<class T>() -> Execute {
    if (half_wanted == Half::lo)
      return elementwise<T, T, T, T>([](T a, T b, T c) { return wrapping_add(low_product(a, b), c); });
    if (half_wanted == Half::hi)
      return elementwise<T, T, T, T>([](T a, T b, T c) { return wrapping_add(high_product(a, b), c); });
    if constexpr (sizeof(T) < 8)
      return elementwise<Wide<T>, T, T, Wide<T>>(
          [](T a, T b, Wide<T> c) { return wrapping_add(wide_product(a, b), c); });
    form.unknown(".wide multiplies 16 or 32 bits");
  });
}

Execute decode_mul24(Form& form) {
  const Half half_wanted = take_half(form, false);
  const Type type = form.take_type(words);
  operands_of_type(form, type, 2);
  return for_integer(type, form, [&]<class T>() -> Execute {
    if (half_wanted == Half::hi)
      return elementwise<T, T, T>(
          [](T a, T b) { return static_cast<T>(low_24_bits(a) * low_24_bits(b) >> 16); });
    return elementwise<T, T, T>([](T a, T b) { return static_cast<T>(low_24_bits(a) * low_24_bits(b)); });
  });
}

Execute decode_mad24(Form& form) {
  const Half half_wanted = take_half(form, false);
  const bool saturates = half_wanted == Half::hi && form.take("sat");
  const Type type = form.take_type(saturates ? only_s32 : words);
  operands_of_type(form, type, 3);
  return for_integer(type, form, [&]<class T>() -> Execute {
    if (saturates)
      return elementwise<T, T, T, T>([](T a, T b, T c) {
        const auto high = static_cast<std::int32_t>(low_24_bits(a) * low_24_bits(b) >> 16);
        return static_cast<T>(saturate(std::int64_t{high} + static_cast<std::int32_t>(c)));
      });
    if (half_wanted == Half::hi)
      return elementwise<T, T, T, T>([](T a, T b, T c) {
        return wrapping_add(static_cast<T>(low_24_bits(a) * low_24_bits(b) >> 16), c);
      });
    return elementwise<T, T, T, T>(
        [](T a, T b, T c) { return wrapping_add(static_cast<T>(low_24_bits(a) * low_24_bits(b)), c); });
  });
}

Execute decode_sad(Form& form) {
  const Type type = form.take_type(all_types);
  operands_of_type(form, type, 3);
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T, T>(
        [](T a, T b, T c) { return wrapping_add(a < b ? wrapping_sub(b, a) : wrapping_sub(a, b), c); });
  });
}

// PTX leaves the results of a division by zero open. Here they are all ones, quotient and remainder (not compared
// with hardware). The smallest number divided by -1 wraps to itself, with remainder 0.

Execute decode_integer_div(Form& form) {
  const Type type = form.take_type(all_types);
  operands_of_type(form, type, 2);
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T>([](T a, T b) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return wrapping_sub(T{0}, a);
      return static_cast<T>(a / b);
    });
  });
}

Execute decode_rem(Form& form) {
  const Type type = form.take_type(all_types);
  operands_of_type(form, type, 2);
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T>([](T a, T b) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return T{0};
      return static_cast<T>(a % b);
    });
  });
}

Execute decode_integer_abs(Form& form) {
  const Type type = form.take_type(signed_types);
  operands_of_type(form, type, 1);
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T>([](T a) { return a < 0 ? wrapping_sub(T{0}, a) : a; });
  });
}

Execute decode_integer_neg(Form& form) {
  const Type type = form.take_type(signed_types);
  operands_of_type(form, type, 1);
  return for_integer(type, form,
                     []<class T>() { return elementwise<T, T>([](T a) { return wrapping_sub(T{0}, a); }); });
}

namespace {

struct Minimum {
  template <class T>
  static T of(T a, T b) {
    return std::min(a, b);
  }
};
struct Maximum {
  template <class T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};

/// Minimum or maximum of both halves; `relu` makes negative results zero.
template <class Extremum, class T, bool relu>
Execute extremum_of_halves() {
  return on_words([](std::uint32_t a, std::uint32_t b) {
    const auto one = [&](int which) {
      const T value = Extremum::of(half<T>(a, which), half<T>(b, which));
      return static_cast<std::uint32_t>(relu ? std::max(value, T{0}) : value);
    };
    return pair_of(one(0), one(1));
  });
}

template <class Extremum>
Execute decode_extremum(Form& form) {
  const bool relu = form.take("relu");
  static constexpr Types relu_types{Type::s16x2, Type::s32};
  const Type type = form.take_type(relu ? relu_types : packed_and_all_types);
  operands_of_type(form, type, 2);
  if (type == Type::u16x2) return extremum_of_halves<Extremum, std::uint16_t, false>();
  if (type == Type::s16x2)
    return relu ? extremum_of_halves<Extremum, std::int16_t, true>()
                : extremum_of_halves<Extremum, std::int16_t, false>();
  if (relu)
    return elementwise<std::int32_t, std::int32_t, std::int32_t>(
        [](std::int32_t a, std::int32_t b) { return std::max(Extremum::of(a, b), 0); });
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T>([](T a, T b) { return Extremum::of(a, b); });
  });
}

}  // namespace

Execute decode_integer_min(Form& form) { return decode_extremum<Minimum>(form); }
Execute decode_integer_max(Form& form) { return decode_extremum<Maximum>(form); }

namespace {

/// Calls visit.operator()<A, B>() with the C++ types of a dot product's sides.
template <class Visit>
Execute for_both_signs(Form& form, Visit visit) {
  const bool a = ptx::is_signed(form.take_type(words)), b = ptx::is_signed(form.take_type(words));
  operands_of_type(form, Type::b32, 3);
  using I = std::int32_t;
  using U = std::uint32_t;
  if (a) return b ? visit.template operator()<I, I>() : visit.template operator()<I, U>();
  return b ? visit.template operator()<U, I>() : visit.template operator()<U, U>();
}

/// c plus the products of a's halves with bytes `first` and `first` + 1 of b.
template <class A, class B, int first>
Execute dot_product_of_halves() {
  using Half16 = std::conditional_t<std::is_signed_v<A>, std::int16_t, std::uint16_t>;
  return elementwise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
      [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
        for (int k = 0; k < 2; ++k)
          c += static_cast<std::uint32_t>(half<Half16>(a, k)) *
               static_cast<std::uint32_t>(byte<B>(b, first + k));
        return c;
      });
}

}  // namespace

Execute decode_dp4a(Form& form) {
  return for_both_signs(form, []<class A, class B>() {
    return elementwise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
        [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
          for (int k = 0; k < 4; ++k)
            c += static_cast<std::uint32_t>(byte<A>(a, k)) * static_cast<std::uint32_t>(byte<B>(b, k));
          return c;
        });
  });
}

Execute decode_dp2a(Form& form) {
  const bool high = take_half(form, false) == Half::hi;
  return for_both_signs(form, [&]<class A, class B>() {
    return high ? dot_product_of_halves<A, B, 2>() : dot_product_of_halves<A, B, 0>();
  });
}

namespace {

/// Sum of c and the differences of the parts of `width` bits, or (`adds` false) the differences clamped to `limit` in
/// the parts of a word.
template <class A, class B, int width, bool adds, std::uint32_t limit>
Execute absolute_differences() {
  return elementwise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
      [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
        constexpr std::uint32_t mask = (1u << width) - 1;
        const auto part = []<class T>(T, std::uint32_t word, int k) {
          using Half16 = std::conditional_t<std::is_signed_v<T>, std::int16_t, std::uint16_t>;
          if constexpr (width == 8) return static_cast<int>(byte<T>(word, k));
          return static_cast<int>(half<Half16>(word, k));
        };
        std::uint32_t parts = 0;
        for (int k = 0; k < 32 / width; ++k) {
          const int x = part(A{}, a, k), y = part(B{}, b, k);
          const auto difference = static_cast<std::uint32_t>(x < y ? y - x : x - y);
          c += difference;
          parts |= (std::min(difference, limit) & mask) << (width * k);
        }
        return adds ? c : parts;
      });
}

/// Without masks and selections on its operands, as the intrinsics of CUDA's headers use it (PTX ISA 9.7.17): all parts
/// of the result come from differences.
template <int width>
Execute decode_vabsdiff(Form& form) {
  constexpr std::uint32_t most = (1u << width) - 1;
  const bool signed_result = ptx::is_signed(form.take_type(words));
  const bool adds = form.take("add"), saturates = !adds && form.take("sat");
  return for_both_signs(form, [&]<class A, class B>() {
    if (adds) return absolute_differences<A, B, width, true, 0>();
    if (!saturates) return absolute_differences<A, B, width, false, 2 * most>();
    return signed_result ? absolute_differences<A, B, width, false, most / 2>()
                         : absolute_differences<A, B, width, false, most>();
  });
}

}  // namespace

Execute decode_vabsdiff2(Form& form) { return decode_vabsdiff<16>(form); }
Execute decode_vabsdiff4(Form& form) { return decode_vabsdiff<8>(form); }

}  // namespace emulator

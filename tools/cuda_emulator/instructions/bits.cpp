#include <algorithm>
#include <bit>
#include <cstdlib>
#include <type_traits>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"

// Bit counts and fields (PTX ISA 9.7.1.14 to 9.7.1.22), logic and shifts (9.7.8), permutation of bytes (9.7.9.7).
namespace emulator {
namespace {

using ptx::Type;
using Types = std::initializer_list<Type>;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr Types wide_bits{Type::b32, Type::b64};
constexpr Types all_bits{Type::b16, Type::b32, Type::b64};
constexpr Types wide_integers{Type::u32, Type::s32, Type::u64, Type::s64};
constexpr Types words{Type::u32, Type::s32};
constexpr Types shiftable{Type::b16, Type::b32, Type::b64, Type::u16, Type::u32,
                          Type::u64, Type::s16, Type::s32, Type::s64};
constexpr Types only_b32{Type::b32};

template <class T>
constexpr u32 bits_of = 8 * sizeof(T);

/// `count` low ones; all of them from the width on.
template <class T>
T low_ones(u32 count) {
  return count >= bits_of<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << count) - 1);
}

/// Bits before the highest that differs from the sign; all bits when none does.
template <class T>
u32 leading_sign_bits(T a) {
  return static_cast<u32>(std::countl_zero(static_cast<std::make_unsigned_t<T>>(a < 0 ? ~a : a)));
}

/// The low bits of a, at most 32, as a number of the type.
template <class T>
T extend(T a, u32 bits) {
  if (bits == 0) return 0;
  return static_cast<T>(static_cast<T>(static_cast<u32>(a) << (32 - bits)) >> (32 - bits));
}

u64 joined(u32 low, u32 high) { return u64{high} << 32 | low; }

/// Takes .clamp (true) or .wrap (false).
bool take_clamp(Form& form) {
  if (form.take("clamp")) return true;
  if (!form.take("wrap")) form.unknown("one of .clamp and .wrap is missing");
  return false;
}

/// A result of the first type and sources of the others, in the statement's order.
void operands(Form& form, InstructionClass kind, Type result, std::initializer_list<Type> sources) {
  form.instruction().kind = kind;
  form.result(0, result);
  std::size_t operand = 1;
  for (const Type source : sources) form.source(operand++, source);
}

}  // namespace

Execute decode_popc(Form& form) {
  const Type type = form.take_type(wide_bits);
  operands(form, InstructionClass::integer, Type::u32, {type});
  return for_integer(type, form, []<class T>() {
    return elementwise<u32, T>(
        [](T a) { return static_cast<u32>(std::popcount(std::make_unsigned_t<T>(a))); });
  });
}

Execute decode_clz(Form& form) {
  const Type type = form.take_type(wide_bits);
  operands(form, InstructionClass::integer, Type::u32, {type});
  return for_integer(type, form, []<class T>() {
    return elementwise<u32, T>(
        [](T a) { return static_cast<u32>(std::countl_zero(std::make_unsigned_t<T>(a))); });
  });
}

Execute decode_bfind(Form& form) {
  const bool shift_amount = form.take("shiftamt");
  const Type type = form.take_type(wide_integers);
  operands(form, InstructionClass::integer, Type::u32, {type});
  return for_integer(type, form, [&]<class T>() {
    if (shift_amount)
      return elementwise<u32, T>(
          [](T a) { return leading_sign_bits(a) == bits_of<T> ? ~0u : leading_sign_bits(a); });
    return elementwise<u32, T>([](T a) { return bits_of<T> - 1 - leading_sign_bits(a); });
  });
}

Execute decode_fns(Form& form) {
  form.take_type(only_b32);
  operands(form, InstructionClass::integer, Type::b32, {Type::b32, Type::b32, Type::s32});
  return elementwise<u32, u32, u32, std::int32_t>([](u32 mask, u32 base, std::int32_t offset) -> u32 {
    if (base >= 32) return ~0u;
    if (offset == 0) return mask >> base & 1 ? base : ~0u;
    // Candidates from the base on, nearest first.
    u32 candidates = offset > 0 ? mask & (~0u << base) : mask & low_ones<u32>(base + 1);
    for (std::int64_t skip = std::abs(std::int64_t{offset}) - 1; skip > 0 && candidates; --skip)
      candidates &= offset > 0 ? candidates - 1 : ~std::bit_floor(candidates);
    if (candidates == 0) return ~0u;
    return static_cast<u32>(offset > 0 ? std::countr_zero(candidates) : 31 - std::countl_zero(candidates));
  });
}

Execute decode_brev(Form& form) {
  const Type type = form.take_type(wide_bits);
  operands(form, InstructionClass::integer, type, {type});
  if (type == Type::b64) {
    return elementwise<u64, u64>([](u64 a) {
      a = (a >> 1 & 0x5555555555555555u) | (a & 0x5555555555555555u) << 1;
      a = (a >> 2 & 0x3333333333333333u) | (a & 0x3333333333333333u) << 2;
      a = (a >> 4 & 0x0f0f0f0f0f0f0f0fu) | (a & 0x0f0f0f0f0f0f0f0fu) << 4;
      return __builtin_bswap64(a);
    });
  }
  return elementwise<u32, u32>([](u32 a) {
    a = (a >> 1 & 0x55555555u) | (a & 0x55555555u) << 1;
    a = (a >> 2 & 0x33333333u) | (a & 0x33333333u) << 2;
    a = (a >> 4 & 0x0f0f0f0fu) | (a & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(a);
  });
}

Execute decode_bfe(Form& form) {
  const Type type = form.take_type(wide_integers);
  operands(form, InstructionClass::integer, type, {type, Type::u32, Type::u32});
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, u32, u32>([](T a, u32 b, u32 c) -> T {
      const u32 position = b & 0xff, length = c & 0xff;
      if (length == 0) return 0;
      if (position >= bits_of<T>) return static_cast<T>(a < 0 ? -1 : 0);
      if (position + length >= bits_of<T>) return static_cast<T>(a >> position);
      // The field moves to the top, then down again with its sign.
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<T>(static_cast<U>(a) << (bits_of<T> - position - length)) >>
                            (bits_of<T> - length));
    });
  });
}

Execute decode_bfi(Form& form) {
  const Type type = form.take_type(wide_bits);
  operands(form, InstructionClass::integer, type, {type, type, Type::u32, Type::u32});
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, T, u32, u32>([](T a, T b, u32 c, u32 d) -> T {
      const u32 position = c & 0xff, length = d & 0xff;
      if (position >= bits_of<T>) return b;
      const T field = low_ones<T>(length) << position;
      return (b & ~field) | (a << position & field);
    });
  });
}

Execute decode_szext(Form& form) {
  const bool clamps = take_clamp(form);
  const Type type = form.take_type(words);
  operands(form, InstructionClass::integer, type, {type, Type::u32});
  return for_integer(type, form, [&]<class T>() {
    if (clamps) return elementwise<T, T, u32>([](T a, u32 b) { return extend(a, std::min(b, 32u)); });
    return elementwise<T, T, u32>([](T a, u32 b) { return extend(a, b & 31); });
  });
}

Execute decode_bmsk(Form& form) {
  const bool clamps = take_clamp(form);
  form.take_type(only_b32);
  operands(form, InstructionClass::integer, Type::b32, {Type::u32, Type::u32});
  if (clamps)
    return elementwise<u32, u32, u32>(
        [](u32 position, u32 width) { return position >= 32 ? 0 : low_ones<u32>(width) << position; });
  return elementwise<u32, u32, u32>(
      [](u32 position, u32 width) { return low_ones<u32>(width & 31) << (position & 31); });
}

namespace {

// Logic on predicates works on whole masks. Bit 0 and bit 1 of Instruction::detail: the first, the second source is negated.
template <class F>
void predicate_logic(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask a = warp.predicate(i, 1) ^ (i.detail & 1 ? all_lanes : 0);
  const LaneMask b = i.operand_count > 2 ? warp.predicate(i, 2) ^ (i.detail & 2 ? all_lanes : 0) : 0;
  warp.set_predicate(i, 0, lanes, F{}(a, b));
}

template <class F>
Execute decode_logic(Form& form, std::size_t sources) {
  if (form.take("pred")) {
    form.instruction().kind = InstructionClass::logic;
    form.result_predicate(0);
    for (std::size_t k = 0; k < sources; ++k) {
      bool negated = false;
      form.source_predicate(k + 1, negated);
      form.instruction().detail |= u64{negated} << k;
    }
    return predicate_logic<F>;
  }
  const Type type = form.take_type(all_bits);
  form.instruction().kind = InstructionClass::logic;
  form.result(0, type);
  for (std::size_t k = 1; k <= sources; ++k) form.source(k, type);
  return for_integer(type, form, [&]<class T>() {
    if (sources == 1) return elementwise<T, T>([](T a) { return static_cast<T>(F{}(a, T{0})); });
    return elementwise<T, T, T>([](T a, T b) { return static_cast<T>(F{}(a, b)); });
  });
}

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a, T) const {
    return static_cast<T>(~a);
  }
};

}  // namespace

Execute decode_and(Form& form) { return decode_logic<And>(form, 2); }
Execute decode_or(Form& form) { return decode_logic<Or>(form, 2); }
Execute decode_xor(Form& form) { return decode_logic<Xor>(form, 2); }
Execute decode_not(Form& form) { return decode_logic<Not>(form, 1); }

Execute decode_cnot(Form& form) {
  const Type type = form.take_type(all_bits);
  operands(form, InstructionClass::logic, type, {type});
  return for_integer(type, form,
                     []<class T>() { return elementwise<T, T>([](T a) { return static_cast<T>(a == 0); }); });
}

namespace {

/// The bits of `low` where the selector is 0, of `high` where it is 1.
u32 choose(u32 selector, u32 low, u32 high) { return low ^ (selector & (low ^ high)); }

/// Bit k of Instruction::detail: the result for k = 4 * (bit of a) + 2 * (bit of b) + (bit of c).
u32 look_up(const Instruction& i, u32 a, u32 b, u32 c) {
  const auto entry = [&](int k) { return i.detail >> k & 1 ? ~0u : 0u; };
  return choose(a, choose(b, choose(c, entry(0), entry(1)), choose(c, entry(2), entry(3))),
                choose(b, choose(c, entry(4), entry(5)), choose(c, entry(6), entry(7))));
}

// lop3 with a predicate: bit 8 of Instruction::detail: .and, otherwise .or; bit 9: q is negated.
void look_up_with_predicate(Warp& warp, const Instruction& i, LaneMask lanes) {
  u32* d = warp.result<u32>(i, 0);
  const u32 *a = warp.source<u32>(i, 2), *b = warp.source<u32>(i, 3), *c = warp.source<u32>(i, 4);
  const LaneMask q = warp.predicate(i, 5) ^ (i.detail >> 9 & 1 ? all_lanes : 0);
  LaneMask some = 0;
  for_lanes(lanes, [&](int lane) {
    d[lane] = look_up(i, a[lane], b[lane], c[lane]);
    some |= LaneMask{d[lane] != 0} << lane;
  });
  warp.set_predicate(i, 1, lanes, i.detail >> 8 & 1 ? some & q : some | q);
}

}  // namespace

Execute decode_lop3(Form& form) {
  const std::string_view fold = form.take_one_of({"and", "or"});
  form.take_type(only_b32);
  Instruction& i = form.instruction();
  i.kind = InstructionClass::logic;
  if (fold.empty()) {
    form.result(0, Type::b32);
  } else {
    form.result_pair(0, Type::b32, Type::pred);
  }
  for (std::size_t operand = 1; operand <= 3; ++operand) form.source(operand, Type::b32);
  i.detail = form.literal(4) & 0xff;
  if (fold.empty())
    return elementwise<u32, u32, u32, u32>(
        [](const Instruction& at, u32 a, u32 b, u32 c) { return look_up(at, a, b, c); });
  bool negated = false;
  form.source_predicate(5, negated);
  i.detail |= u64{fold == "and"} << 8 | u64{negated} << 9;
  return look_up_with_predicate;
}

Execute decode_shf(Form& form) {
  const bool left = form.take("l");
  if (!left && !form.take("r")) form.unknown("one of .l and .r is missing");
  const bool clamps = take_clamp(form);
  form.take_type(only_b32);
  operands(form, InstructionClass::logic, Type::b32, {Type::b32, Type::b32, Type::u32});
  if (left) {
    if (clamps)
      return elementwise<u32, u32, u32, u32>(
          [](u32 a, u32 b, u32 n) { return static_cast<u32>(joined(a, b) << std::min(n, 32u) >> 32); });
    return elementwise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>(joined(a, b) << (n & 31) >> 32); });
  }
  if (clamps)
    return elementwise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>(joined(a, b) >> std::min(n, 32u)); });
  return elementwise<u32, u32, u32, u32>(
      [](u32 a, u32 b, u32 n) { return static_cast<u32>(joined(a, b) >> (n & 31)); });
}

Execute decode_shl(Form& form) {
  const Type type = form.take_type(all_bits);
  operands(form, InstructionClass::logic, type, {type, Type::u32});
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, u32>(
        [](T a, u32 n) { return n >= bits_of<T> ? T{0} : static_cast<T>(std::make_unsigned_t<T>(a) << n); });
  });
}

Execute decode_shr(Form& form) {
  const Type type = form.take_type(shiftable);
  operands(form, InstructionClass::logic, type, {type, Type::u32});
  return for_integer(type, form, []<class T>() {
    return elementwise<T, T, u32>([](T a, u32 n) {
      if (n >= bits_of<T>) return static_cast<T>(a < 0 ? -1 : 0);
      return static_cast<T>(a >> n);
    });
  });
}

namespace {

/// Nibble k of the selector names the source byte (0 to 7) of byte k; its bit 3 asks for eight copies of that byte's sign.
u32 permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 nibble = selector >> (4 * k);
    const auto byte = static_cast<u8>(bytes >> (8 * (nibble & 7)));
    const u32 sign = byte & 0x80 ? 0xff : 0;
    result |= (nibble & 8 ? sign : byte) << (8 * k);
  }
  return result;
}

/// The selectors that a mode means by c = 0, 1, 2 and 3 (PTX ISA 9.7.9.7, table of modes).
struct PermuteMode {
  std::string_view name;
  u16 selectors[4];
};
constexpr PermuteMode permute_modes[] = {
    {"f4e", {0x3210, 0x4321, 0x5432, 0x6543}}, {"b4e", {0x5670, 0x6701, 0x7012, 0x0123}},
    {"rc8", {0x0000, 0x1111, 0x2222, 0x3333}}, {"ecl", {0x3210, 0x3211, 0x3222, 0x3333}},
    {"ecr", {0x0000, 0x1110, 0x2210, 0x3210}}, {"rc16", {0x1010, 0x3232, 0x1010, 0x3232}},
};

}  // namespace

Execute decode_prmt(Form& form) {
  form.take_type(only_b32);
  operands(form, InstructionClass::logic, Type::b32, {Type::b32, Type::b32, Type::b32});
  for (const PermuteMode& mode : permute_modes) {
    if (!form.take(mode.name)) continue;
    for (int k = 0; k < 4; ++k) form.instruction().detail |= u64{mode.selectors[k]} << (16 * k);
    return elementwise<u32, u32, u32, u32>([](const Instruction& i, u32 a, u32 b, u32 c) {
      return permute(a, b, static_cast<u32>(i.detail >> (16 * (c & 3))));
    });
  }
  return elementwise<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute(a, b, c); });
}

}  // namespace emulator

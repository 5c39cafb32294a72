#include <bit>
#include <cmath>
#include <type_traits>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"
#include "instructions/half.h"

// Comparison and selection (PTX ISA 9.7.6), also of 16-bit floating types and their pairs (9.7.7).
namespace emulator {
namespace {

using ptx::Type;
using Types = std::initializer_list<Type>;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

/// For NaN the first six are false and equ ... geu are true. Integers have only the first six.
template <Comparison comparison, class T>
bool holds(T a, T b) {
  using enum Comparison;
  const bool unordered = a != a || b != b;
  switch (comparison) {
    case eq:
      return a == b;
    case ne:
      return !unordered && a != b;
    case lt:
      return a < b;
    case le:
      return a <= b;
    case gt:
      return a > b;
    case ge:
      return a >= b;
    case equ:
      return unordered || a == b;
    case neu:
      return a != b;
    case ltu:
      return !(a >= b);
    case leu:
      return !(a > b);
    case gtu:
      return !(a <= b);
    case geu:
      return !(a < b);
    case num:
      return !unordered;
    case nan:
      return unordered;
  }
}

// What a row holds, and the number that is compared: one of these for each source type.

template <class T>
struct Plain {
  using Row = T;
  static T value(T row) { return row; }
};
/// f32 with subnormals flushed to zero.
struct Flushed {
  using Row = float;
  static float value(float row) { return std::abs(row) < 0x1p-126f ? 0.0f : row; }
};
template <int which>
struct Half {
  using Row = std::conditional_t < which<0, u16, u32>;
  static float value(Row row) { return half_to_float(static_cast<u16>(which > 0 ? u32{row} >> 16 : row)); }
};
template <int which>
struct FlushedHalf {
  using Row = typename Half<which>::Row;
  static float value(Row row) {
    const float x = Half<which>::value(row);
    return std::abs(x) < 0x1p-14f ? 0.0f : x;
  }
};
template <int which>
struct Bfloat {
  using Row = typename Half<which>::Row;
  static float value(Row row) { return bfloat_to_float(static_cast<u16>(which > 0 ? u32{row} >> 16 : row)); }
};
constexpr int alone = -1, lower = 0, upper = 1;  // `which` of the three above

/// All 32 lanes' results of one comparison; lanes that do not execute are masked by the caller.
using CompareRows = LaneMask (*)(const void* a, const void* b);
template <class Operand, Comparison comparison>
LaneMask compare_rows(const void* a, const void* b) {
  const auto* x = static_cast<const typename Operand::Row*>(a);
  const auto* y = static_cast<const typename Operand::Row*>(b);
  LaneMask result = 0;
  for (int lane = 0; lane < warp_size; ++lane)
    result |= LaneMask{holds<comparison>(Operand::value(x[lane]), Operand::value(y[lane]))} << lane;
  return result;
}

/// `second`: of the upper halves of pairs, otherwise null.
struct Comparer {
  CompareRows first, second;
};
template <Comparison comparison, class Operand, class Second>
constexpr Comparer comparer_of() {
  if constexpr (std::is_void_v<Second>)
    return {compare_rows<Operand, comparison>, nullptr};
  else
    return {compare_rows<Operand, comparison>, compare_rows<Second, comparison>};
}
template <class Operand, class Second = void>
constexpr Comparer floating_comparers[] = {
    comparer_of<Comparison::eq, Operand, Second>(),  comparer_of<Comparison::ne, Operand, Second>(),
    comparer_of<Comparison::lt, Operand, Second>(),  comparer_of<Comparison::le, Operand, Second>(),
    comparer_of<Comparison::gt, Operand, Second>(),  comparer_of<Comparison::ge, Operand, Second>(),
    comparer_of<Comparison::equ, Operand, Second>(), comparer_of<Comparison::neu, Operand, Second>(),
    comparer_of<Comparison::ltu, Operand, Second>(), comparer_of<Comparison::leu, Operand, Second>(),
    comparer_of<Comparison::gtu, Operand, Second>(), comparer_of<Comparison::geu, Operand, Second>(),
    comparer_of<Comparison::num, Operand, Second>(), comparer_of<Comparison::nan, Operand, Second>(),
};
template <class T>
constexpr Comparer integer_comparers[] = {
    comparer_of<Comparison::eq, Plain<T>, void>(), comparer_of<Comparison::ne, Plain<T>, void>(),
    comparer_of<Comparison::lt, Plain<T>, void>(), comparer_of<Comparison::le, Plain<T>, void>(),
    comparer_of<Comparison::gt, Plain<T>, void>(), comparer_of<Comparison::ge, Plain<T>, void>(),
};

struct ComparisonName {
  std::string_view name;
  Comparison comparison;
};
/// lo, ls, hi and hs are other names for unsigned integers.
constexpr ComparisonName comparison_names[] = {
    {"eq", Comparison::eq},   {"ne", Comparison::ne},   {"lt", Comparison::lt},   {"le", Comparison::le},
    {"gt", Comparison::gt},   {"ge", Comparison::ge},   {"equ", Comparison::equ}, {"neu", Comparison::neu},
    {"ltu", Comparison::ltu}, {"leu", Comparison::leu}, {"gtu", Comparison::gtu}, {"geu", Comparison::geu},
    {"num", Comparison::num}, {"nan", Comparison::nan}, {"lo", Comparison::lt},   {"ls", Comparison::le},
    {"hi", Comparison::gt},   {"hs", Comparison::ge},
};

const Comparer& integer_comparer(Form& form, Type type, Comparison comparison) {
  if (comparison > Comparison::ge) form.unknown("integers have no such comparison");
  const auto k = static_cast<std::size_t>(comparison);
  switch (type) {
    case Type::u16:
    case Type::b16:
      return integer_comparers<u16>[k];
    case Type::u32:
    case Type::b32:
      return integer_comparers<u32>[k];
    case Type::u64:
    case Type::b64:
      return integer_comparers<u64>[k];
    case Type::s16:
      return integer_comparers<std::int16_t>[k];
    case Type::s32:
      return integer_comparers<std::int32_t>[k];
    case Type::s64:
      return integer_comparers<std::int64_t>[k];
    default:
      form.unknown("type that cannot be compared");
  }
}

/// Takes the comparison, .ftz and the type compared, which is the first of the remaining types.
const Comparer& take_comparer(Form& form, Type& type) {
  const ComparisonName* named = nullptr;
  for (const ComparisonName& candidate : comparison_names)
    if (form.take(candidate.name)) {
      named = &candidate;
      break;
    }
  if (!named) form.unknown("no comparison");
  type = form.take_type();
  const auto k = static_cast<std::size_t>(named->comparison);
  if (named - comparison_names > static_cast<std::ptrdiff_t>(Comparison::nan) && type != Type::u16 &&
      type != Type::u32 && type != Type::u64)
    form.unknown(".lo, .ls, .hi and .hs compare unsigned integers");
  switch (type) {
    case Type::f32:
      return form.take("ftz") ? floating_comparers<Flushed>[k] : floating_comparers<Plain<float>>[k];
    case Type::f64:
      return floating_comparers<Plain<double>>[k];
    case Type::f16:
      return form.take("ftz") ? floating_comparers<FlushedHalf<alone>>[k]
                              : floating_comparers<Half<alone>>[k];
    case Type::f16x2:
      return form.take("ftz") ? floating_comparers<FlushedHalf<lower>, FlushedHalf<upper>>[k]
                              : floating_comparers<Half<lower>, Half<upper>>[k];
    case Type::bf16:
      return floating_comparers<Bfloat<alone>>[k];
    case Type::bf16x2:
      return floating_comparers<Bfloat<lower>, Bfloat<upper>>[k];
    default:
      return integer_comparer(form, type, named->comparison);
  }
}

// Fold with a predicate, in the upper bits of Instruction::detail. The lower 32 hold what `set` writes for true.
constexpr int fold_bit = 32, negated_bit = 34;
enum class Fold : std::uint8_t { none, conjunction, disjunction, exclusive };
Fold fold_of(const Instruction& i) { return static_cast<Fold>(i.detail >> fold_bit & 3); }

Fold take_fold(Form& form) {
  if (form.take("and")) return Fold::conjunction;
  if (form.take("or")) return Fold::disjunction;
  return form.take("xor") ? Fold::exclusive : Fold::none;
}

/// Appends the predicate that the comparison is folded with, if there is a fold.
void take_folded_predicate(Form& form, Fold fold, std::size_t operand) {
  if (fold == Fold::none) return;
  bool negated = false;
  form.source_predicate(operand, negated);
  form.instruction().detail |= static_cast<u64>(fold) << fold_bit | u64{negated} << negated_bit;
}

/// `operand`: that of the folded predicate.
LaneMask folded(Warp& warp, const Instruction& i, int operand, LaneMask compared) {
  const Fold fold = fold_of(i);
  if (fold == Fold::none) return compared;
  const LaneMask c = warp.predicate(i, operand) ^ (i.detail >> negated_bit & 1 ? all_lanes : 0);
  if (fold == Fold::conjunction) return compared & c;
  if (fold == Fold::disjunction) return compared | c;
  return compared ^ c;
}

const Comparer& comparer(const Instruction& i) { return *static_cast<const Comparer*>(i.extra); }

void execute_setp(Warp& warp, const Instruction& i, LaneMask lanes) {
  warp.set_predicate(i, 0, lanes, comparer(i).first(warp.source<void>(i, 1), warp.source<void>(i, 2)));
}

// p|q: of the comparison and its complement, or of the lower and the upper halves.
void execute_setp_pair(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Comparer& compare = comparer(i);
  const void *a = warp.source<void>(i, 2), *b = warp.source<void>(i, 3);
  const LaneMask first = compare.first(a, b), second = compare.second ? compare.second(a, b) : ~first;
  const LaneMask p = folded(warp, i, 4, first), q = folded(warp, i, 4, second);
  warp.set_predicate(i, 0, lanes, p);
  warp.set_predicate(i, 1, lanes, q);
}

template <class D>
void execute_set(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask result =
      folded(warp, i, 3, comparer(i).first(warp.source<void>(i, 1), warp.source<void>(i, 2)));
  const auto truth = static_cast<D>(i.detail);
  D* d = warp.result<D>(i, 0);
  for_lanes(lanes, [&](int lane) { d[lane] = result >> lane & 1 ? truth : D{0}; });
}

void execute_set_halves(Warp& warp, const Instruction& i, LaneMask lanes) {
  const void *a = warp.source<void>(i, 1), *b = warp.source<void>(i, 2);
  const LaneMask low = folded(warp, i, 3, comparer(i).first(a, b)),
                 high = folded(warp, i, 3, comparer(i).second(a, b));
  const auto truth = static_cast<u32>(i.detail);
  u32* d = warp.result<u32>(i, 0);
  for_lanes(lanes, [&](int lane) {
    d[lane] = (low >> lane & 1 ? truth & 0xffff : 0) | (high >> lane & 1 ? truth & ~0xffffu : 0);
  });
}

/// What `set` writes for true: 1.0 of a floating type, all ones of an integer type.
u32 truth_of(Type type) {
  switch (type) {
    case Type::f32:
      return std::bit_cast<u32>(1.0f);
    case Type::f16:
      return 0x3c00;
    case Type::bf16:
      return 0x3f80;
    case Type::f16x2:
      return 0x3c003c00;
    case Type::bf16x2:
      return 0x3f803f80;
    case Type::u16:
    case Type::s16:
      return 0xffff;
    default:
      return 0xffffffff;
  }
}

constexpr Types selectable{Type::b16, Type::b32, Type::b64, Type::u16, Type::u32, Type::u64,
                           Type::s16, Type::s32, Type::s64, Type::f32, Type::f64};

/// Calls visit.operator()<T>() with the unsigned type of the width.
template <class Visit>
Execute for_width(Type type, Visit visit) {
  switch (ptx::bytes_of(type)) {
    case 2:
      return visit.template operator()<u16>();
    case 4:
      return visit.template operator()<u32>();
    default:
      return visit.template operator()<u64>();
  }
}

// Bit 0 of Instruction::detail: the predicate is negated.
template <class T>
void execute_selp(Warp& warp, const Instruction& i, LaneMask lanes) {
  T* d = warp.result<T>(i, 0);
  const T *a = warp.source<T>(i, 1), *b = warp.source<T>(i, 2);
  const LaneMask c = warp.predicate(i, 3) ^ (i.detail & 1 ? all_lanes : 0);
  for_lanes(lanes, [&](int lane) { d[lane] = c >> lane & 1 ? a[lane] : b[lane]; });
}

}  // namespace

Execute decode_setp(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::compare;
  const Fold fold = take_fold(form);
  Type type;
  const Comparer& compare = take_comparer(form, type);
  i.extra = &compare;
  const bool pair =
      form.operand_count() > 0 && std::holds_alternative<ptx::Pair>(form.statement().operands.front());
  if (compare.second && !pair) form.unknown("pairs are compared into two predicates");
  if (!pair && fold == Fold::none) {
    form.result_predicate(0);
    form.source(1, type);
    form.source(2, type);
    return execute_setp;
  }
  form.result_pair(0, Type::pred, Type::pred);
  form.source(1, type);
  form.source(2, type);
  take_folded_predicate(form, fold, 3);
  return execute_setp_pair;
}

Execute decode_set(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::compare;
  const Fold fold = take_fold(form);
  const Type result = form.take_type({Type::u32, Type::s32, Type::f32, Type::u16, Type::s16, Type::f16,
                                      Type::bf16, Type::f16x2, Type::bf16x2});
  Type type;
  const Comparer& compare = take_comparer(form, type);
  const bool packed = result == Type::f16x2 || result == Type::bf16x2, narrow = ptx::bytes_of(result) == 2;
  if (packed && result != type) form.unknown("result and sources are different pairs");
  if (compare.second && result == Type::f32) form.unknown("pairs are compared into pairs");
  if (compare.second && narrow) form.unknown("pairs are compared into pairs");
  if ((result == Type::u16 || result == Type::s16) && type != Type::f16 && type != Type::bf16)
    form.unknown(".u16 and .s16 are results for .f16 and .bf16");
  i.extra = &compare;
  i.detail = truth_of(result);
  form.result(0, result);
  form.source(1, type);
  form.source(2, type);
  take_folded_predicate(form, fold, 3);
  if (compare.second) return execute_set_halves;
  return narrow ? execute_set<u16> : execute_set<u32>;
}

Execute decode_selp(Form& form) {
  const Type type = form.take_type(selectable);
  Instruction& i = form.instruction();
  i.kind = InstructionClass::compare;
  form.result(0, type);
  form.source(1, type);
  form.source(2, type);
  bool negated = false;
  form.source_predicate(3, negated);
  i.detail = negated;
  return for_width(type, []<class T>() -> Execute { return execute_selp<T>; });
}

Execute decode_slct(Form& form) {
  const Type type = form.take_type(selectable), selector = form.take_type({Type::s32, Type::f32});
  const bool flushes = selector == Type::f32 && form.take("ftz");
  form.instruction().kind = InstructionClass::compare;
  form.result(0, type);
  form.source(1, type);
  form.source(2, type);
  form.source(3, selector);
  return for_width(type, [&]<class T>() {
    if (selector == Type::s32)
      return elementwise<T, T, T, std::int32_t>([](T a, T b, std::int32_t c) { return c >= 0 ? a : b; });
    if (flushes)
      return elementwise<T, T, T, float>([](T a, T b, float c) { return Flushed::value(c) >= 0 ? a : b; });
    return elementwise<T, T, T, float>([](T a, T b, float c) { return c >= 0 ? a : b; });
  });
}

}  // namespace emulator

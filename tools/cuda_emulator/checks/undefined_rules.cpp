#include <algorithm>
#include <bit>
#include <cstring>

#include "checks/undefined.h"
#include "instructions/form.h"
#include "machine/warp.h"
#include "machine/watch.h"

// What instructions make of undefined bits: the table at the end. An opcode that is not in it uses its sources, which is reported.
namespace emulator {
namespace {

using Rule = UndefinedRule;
using Values = UndefinedValues;

bool has(const Instruction& i, std::string_view modifier) {
  return std::ranges::find(i.statement->modifiers, modifier) != i.statement->modifiers.end();
}

Bits value_of(Warp& warp, const Instruction& i, int operand, int lane) {
  const Slot slot = i.operands[operand];
  if (!slot.width) return warp.predicate(i, operand) >> lane & 1;
  Bits value = 0;
  std::memcpy(&value, warp.source<std::byte>(i, operand) + static_cast<std::size_t>(lane) * slot.width,
              slot.width);
  return value;
}

/// The operands' rows, nullptr for those without undefined bits.
struct Rows {
  std::array<const UndefinedRow*, 8> rows{};
  Rows(const Values& values, Warp& warp, const Instruction& i) {
    for (int k = 0; k < i.operand_count; ++k)
      if (!i.operands[k].written)
        rows[static_cast<std::size_t>(k)] = values.row(&warp.frame(), i.operands[k]);
  }
  Bits at(int operand, int lane) const {
    const UndefinedRow* const row = rows[static_cast<std::size_t>(operand)];
    return row ? row->at(lane) : 0;
  }
  /// Of the first operand whose value in the lane has undefined bits.
  Origin origin(int lane, bool computed) const {
    for (const UndefinedRow* const row : rows)
      if (row && row->at(lane)) {
        Origin origin = row->origin[static_cast<std::size_t>(lane)];
        origin.computed |= computed;
        return origin;
      }
    return {};
  }
};

void set_results(Values& values, Warp& warp, const Instruction& i, LaneMask lanes, const UndefinedRow& row) {
  for (int k = 0; k < i.operand_count; ++k)
    if (i.operands[k].written) values.set(&warp.frame(), i.operands[k], lanes, row);
}

/// Each bit of the results depends on all bits of the sources; of pairs of 16-bit values: of the same half.
void mix(const Rule&, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  const Rows rows(values, warp, i);
  const std::string& opcode = i.statement->opcode;
  const bool reads_carry = opcode == "addc" || opcode == "subc" || opcode == "madc";
  const bool pairs =
      std::ranges::any_of(i.statement->modifiers, [](const std::string& m) { return m.ends_with("16x2"); });
  const bool halves = pairs && opcode != "cvt";
  const UndefinedRow* const carry = reads_carry ? values.row(nullptr, Values::carry) : nullptr;
  UndefinedRow out;
  for_lanes(lanes, [&](int lane) {
    Bits any = 0;
    for (int k = 0; k < i.operand_count; ++k) any |= rows.at(k, lane);
    Origin origin = rows.origin(lane, true);
    if (!any && carry && carry->at(lane)) origin = carry->origin[static_cast<std::size_t>(lane)];
    const bool some = any || (carry && carry->at(lane));
    const Bits low = any & 0xffff ? 0xffff : 0, high = any >> 16 ? 0xffff0000 : 0;
    out.set(lane, !some ? 0 : halves ? low | high : ~Bits{0}, origin);
  });
  set_results(values, warp, i, lanes, out);
  if (has(i, "cc")) values.set(nullptr, Values::carry, lanes, out);
}

/// Integer sums and low products: a bit depends on the sources' bits up to its own place.
void mix_upwards(const Rule& rule, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  if (group_of(*i.statement) != TypeGroup::integer || has(i, "cc") || has(i, "sat") || has(i, "hi") ||
      has(i, "u16x2") || has(i, "s16x2"))
    return mix(rule, values, warp, i, lanes);
  const Rows rows(values, warp, i);
  UndefinedRow out;
  for_lanes(lanes, [&](int lane) {
    Bits any = 0;
    for (int k = 0; k < i.operand_count; ++k) any |= rows.at(k, lane);
    out.set(lane, ~((any & -any) - 1) & (any ? ~Bits{0} : 0), rows.origin(lane, true));
  });
  set_results(values, warp, i, lanes, out);
}

/// Bits go to other places. Operands of Rule::operands say where to, and have to be defined.
void move(const Rule& rule, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::array<UndefinedRow, 8> results = values.moved(warp, i, lanes, rule.operands);
  for (int k = 0; k < i.operand_count; ++k)
    if (i.operands[k].written)
      values.set(&warp.frame(), i.operands[k], lanes, results[static_cast<std::size_t>(k)]);
}

/// A predicate is copied or negated.
void copy(const Rule& rule, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  if (!has(i, "pred")) return move(rule, values, warp, i, lanes);
  const UndefinedRow* const row = values.row(&warp.frame(), i.operands[1]);
  values.set(&warp.frame(), i.operands[0], lanes, row ? UndefinedRow(*row) : UndefinedRow());
}

bool is_integer(ptx::Type type) {
  using enum ptx::Type;
  switch (type) {
    case u8:
    case s8:
    case u16:
    case s16:
    case u32:
    case s32:
    case u64:
    case s64:
      return true;
    default:
      return false;
  }
}

/// Integers are cut off and extended, two values become a pair, everything else is arithmetic.
void convert(const Rule& rule, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  int integers = 0, types = 0;
  for (const std::string& m : i.statement->modifiers)
    if (const ptx::Type type = ptx::type_named(m); type != ptx::Type::none)
      ++types, integers += is_integer(type);
  if (types == 2 && integers == 2 && !has(i, "sat") && !has(i, "pack"))
    return move(rule, values, warp, i, lanes);
  if ((!has(i, "f16x2") && !has(i, "bf16x2")) || i.operand_count != 3 || i.operands[0].width != 4)
    return mix(rule, values, warp, i, lanes);
  const Rows rows(values, warp, i);
  UndefinedRow out;
  for_lanes(lanes, [&](int lane) {
    out.set(lane, (rows.at(1, lane) ? 0xffff0000u : 0u) | (rows.at(2, lane) ? 0xffffu : 0u),
            rows.origin(lane, true));
  });
  values.set(&warp.frame(), i.operands[0], lanes, out);
}

/// Truth tables of three inputs as lop3 has them: a 0xf0, b 0xcc, c 0xaa.
std::uint32_t truth_table(const Instruction& i) {
  const std::string& opcode = i.statement->opcode;
  if (opcode == "lop3") return static_cast<std::uint32_t>(i.detail & 0xff);
  return opcode == "and" ? 0xf0 & 0xcc : opcode == "or" ? 0xf0 | 0xcc : opcode == "xor" ? 0xf0 ^ 0xcc : 0x0f;
}

/// A bit is undefined if undefined bits of the sources can make it 0 and can make it 1.
void combine_bits(const Rule&, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  const Rows rows(values, warp, i);
  const bool predicates = i.operands[0].width == 0;
  const int first = 1 + (i.operand_count > 1 && i.operands[1].written);
  const std::uint32_t table = truth_table(i);
  UndefinedRow out;
  for_lanes(lanes, [&](int lane) {
    std::array<Bits, 3> can_be_0, can_be_1;
    for (int k = 0; k < 3; ++k) {
      const auto at = static_cast<std::size_t>(k);
      if (first + k >= i.operand_count) {
        can_be_0[at] = ~Bits{0}, can_be_1[at] = 0;
        continue;
      }
      Bits value = value_of(warp, i, first + k, lane);
      if (predicates && i.detail >> k & 1) value = ~value;
      const Bits undefined = rows.at(first + k, lane);
      can_be_0[at] = ~value | undefined;
      can_be_1[at] = value | undefined;
    }
    Bits some_0 = 0, some_1 = 0;
    for (std::uint32_t k = 0; k < 8; ++k) {
      const Bits possible = (k & 4 ? can_be_1 : can_be_0)[0] & (k & 2 ? can_be_1 : can_be_0)[1] &
                            (k & 1 ? can_be_1 : can_be_0)[2];
      (table >> k & 1 ? some_1 : some_0) |= possible;
    }
    out.set(lane, some_0 & some_1 & all_bits(i.operands[0].width), rows.origin(lane, false));
  });
  if (first == 2) {  // lop3 with a predicate: whether any bit is set
    const UndefinedRow* const folded = i.operand_count > 5 ? rows.rows[5] : nullptr;
    UndefinedRow some;
    for_lanes(lanes, [&](int lane) {
      const bool undefined = out.at(lane) || (folded && folded->at(lane));
      some.set(lane, undefined, rows.origin(lane, true));
    });
    values.set(&warp.frame(), i.operands[1], lanes, some);
  }
  values.set(&warp.frame(), i.operands[0], lanes, out);
}

/// Operands: results, two values, and the predicate that the comparison is folded with.
void compare(const Rule&, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  const Rows rows(values, warp, i);
  const int first = 1 + i.operands[1].written, fold = first + 2;
  const bool folds = fold < i.operand_count;
  bool negated = false;
  if (folds)
    if (const auto* scalar = std::get_if<ptx::Scalar>(&i.statement->operands.back()))
      if (const auto* use = std::get_if<ptx::RegisterUse>(scalar)) negated = use->negated;
  // Integers that differ in a defined bit are different.
  const bool equality =
      (has(i, "eq") || has(i, "ne")) &&
      std::ranges::none_of(i.statement->modifiers, [](const std::string& m) {
        const ptx::Type type = ptx::type_named(m);
        return type != ptx::Type::none && m[0] != 'u' && m[0] != 's' && (m[0] != 'b' || m[1] == 'f');
      });
  UndefinedRow out;
  for_lanes(lanes, [&](int lane) {
    const Bits undefined = rows.at(first, lane) | rows.at(first + 1, lane);
    const bool differ =
        equality && ((value_of(warp, i, first, lane) ^ value_of(warp, i, first + 1, lane)) & ~undefined);
    const bool compared = undefined && !differ;
    bool result = compared;
    if (folds) {
      const bool c = (value_of(warp, i, fold, lane) != 0) != negated, c_undefined = rows.at(fold, lane) != 0;
      const bool decided = !c_undefined && ((has(i, "and") && !c) || (has(i, "or") && c));
      result = (compared || c_undefined) && !decided;
    }
    out.set(lane, result ? ~Bits{0} : 0, rows.origin(lane, true));
  });
  set_results(values, warp, i, lanes, out);
}

/// The operands of Rule::operands are used; others the instruction hands on by itself, results too.
void use_some(const Rule& rule, Values& values, Warp& warp, const Instruction& i, LaneMask lanes) {
  for (int k = 0; k < i.operand_count; ++k)
    if (rule.operands >> k & 1) {
      if (i.operands[k].written)
        values.clear(&warp.frame(), i.operands[k], lanes);
      else
        values.use(warp, i, i.operands[k], lanes);
    }
}

constexpr std::uint32_t operand(int k) { return 1u << k; }

constexpr Rule table[] = {
    // Moves.
    {"mov", copy},
    {"selp", move, operand(3)},
    {"slct", move, operand(3)},
    {"shl", move, operand(2)},
    {"shr", move, operand(2)},
    {"shf", move, operand(3)},
    {"prmt", move, operand(3)},
    {"bfe", move, operand(2) | operand(3)},
    {"bfi", move, operand(3) | operand(4)},
    {"szext", move, operand(2)},
    {"brev", move},
    {"cvt", convert},
    {"ld", use_some, ~0u},
    {"ldu", use_some, ~0u},
    {"st", use_some, operand(0)},
    {"shfl", use_some, operand(1) | operand(3) | operand(4) | operand(5)},
    // Logic and comparison.
    {"and", combine_bits},
    {"or", combine_bits},
    {"xor", combine_bits},
    {"not", combine_bits},
    {"lop3", combine_bits},
    {"set", compare},
    {"setp", compare},
    // Arithmetic.
    {"add", mix_upwards},
    {"sub", mix_upwards},
    {"mul", mix_upwards},
    {"mad", mix_upwards},
    {"neg", mix_upwards},
    {"addc", mix},
    {"subc", mix},
    {"madc", mix},
    {"mul24", mix},
    {"mad24", mix},
    {"sad", mix},
    {"div", mix},
    {"rem", mix},
    {"abs", mix},
    {"min", mix},
    {"max", mix},
    {"dp4a", mix},
    {"dp2a", mix},
    {"vabsdiff4", mix},
    {"popc", mix},
    {"clz", mix},
    {"bfind", mix},
    {"fns", mix},
    {"bmsk", mix},
    {"cnot", mix},
    {"fma", mix},
    {"rcp", mix},
    {"sqrt", mix},
    {"rsqrt", mix},
    {"sin", mix},
    {"cos", mix},
    {"lg2", mix},
    {"ex2", mix},
    {"tanh", mix},
    {"testp", mix},
    {"copysign", mix},
    {"cvta", mix},
    {"isspacep", mix},
};

}  // namespace

const UndefinedRule* watch::undefined_rule(const ptx::Statement& statement) {
  for (const Rule& rule : table)
    if (rule.opcode == statement.opcode) return &rule;
  return nullptr;
}

}  // namespace emulator

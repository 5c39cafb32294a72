#include <cmath>
#include <cstring>

#include "tests/exact_rounding.h"
#include "tests/lanewise.h"

using namespace emulator::test;

namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// How two numbers lie: what every comparison is a set of.
enum Relation : unsigned { less = 1, equal = 2, greater = 4, unordered = 8 };
template <class T>
Relation relation(T a, T b) {
  return a < b ? less : a > b ? greater : a == b ? equal : unordered;
}

struct Operator {
  std::string name;
  unsigned relations;  ///< for which it is true
};
const Operator ordered_operators[] = {{"eq", equal},        {"ne", less | greater}, {"lt", less},
                                      {"le", less | equal}, {"gt", greater},        {"ge", greater | equal}};
const Operator unsigned_operators[] = {
    {"lo", less}, {"ls", less | equal}, {"hi", greater}, {"hs", greater | equal}};
const Operator unordered_operators[] = {{"equ", equal | unordered},      {"neu", less | greater | unordered},
                                        {"ltu", less | unordered},       {"leu", less | equal | unordered},
                                        {"gtu", greater | unordered},    {"geu", greater | equal | unordered},
                                        {"num", less | equal | greater}, {"nan", unordered}};

bool is(Predicate p) { return p == Predicate{1}; }

/// setp in all its shapes for one operator and type; `value` makes a number of an operand.
template <class T, class Value>
void check_setp(const Operator& op, const std::string& type, Value value) {
  const auto holds = [&](T a, T b) { return (op.relations & relation(value(a), value(b))) != 0; };
  const std::string name = "setp." + op.name;
  check_lanes<Predicate, T, T>(name + type + " %d, %s0, %s1;", holds);
}
template <class T, class Value>
void check_folds(const Operator& op, const std::string& type, Value value) {
  using P = Predicate;
  const auto holds = [&](T a, T b) { return (op.relations & relation(value(a), value(b))) != 0; };
  const std::string name = "setp." + op.name;
  check_lanes<P, T, T, P>(name + ".and" + type + " %d, %s0, %s1, %s2;",
                          [&](T a, T b, P c) { return holds(a, b) && is(c); });
  check_lanes<P, T, T, P>(name + ".or" + type + " %d, %s0, %s1, !%s2;",
                          [&](T a, T b, P c) { return holds(a, b) || !is(c); });
  check_lanes<P, T, T, P>(name + ".xor" + type + " %d, %s0, %s1, %s2;",
                          [&](T a, T b, P c) { return holds(a, b) != is(c); });
}
/// Two results: of the comparison and of its complement. The 16-bit floating types have no such form.
template <class T, class Value>
void check_complements(const Operator& op, const std::string& type, Value value) {
  using P = Predicate;
  const auto holds = [&](T a, T b) { return (op.relations & relation(value(a), value(b))) != 0; };
  const std::string name = "setp." + op.name;
  check_lanes<P, T, T>(name + type + " _|%d, %s0, %s1;", [&](T a, T b) { return !holds(a, b); });
  check_lanes<P, T, T, P>(name + ".and" + type + " _|%d, %s0, %s1, %s2;",
                          [&](T a, T b, P c) { return !holds(a, b) && is(c); });
  // The destinations may be the predicate that is folded in.
  check_lanes<P, T, T, P>(
      "{ .reg .pred %q;\n" + name + ".or" + type + " %q|%s2, %s0, %s1, %s2;\nxor.pred %d, %q, %s2;\n}",
      [](T, T, P c) { return !is(c); });
}

const auto itself = [](auto a) { return a; };

template <class T>
void check_integer(const std::string& type) {
  for (const Operator& op : ordered_operators) check_setp<T>(op, type, itself);
  check_folds<T>(ordered_operators[2], type, itself);
  check_complements<T>(ordered_operators[2], type, itself);
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.0f : x; }

template <class T, class Value>
void check_floating(const std::string& type, Value value) {
  for (const Operator& op : ordered_operators) check_setp<T>(op, type, value);
  for (const Operator& op : unordered_operators) check_setp<T>(op, type, value);
}

double f16(u16 bits) { return decode(f16_format, bits); }
double bf16(u16 bits) { return decode(bf16_format, bits); }
double flushed_f16(u16 bits) { return std::abs(f16(bits)) < std::ldexp(1, -14) ? 0 : f16(bits); }

}  // namespace

TEST_CASE("setp of integers") {
  check_integer<u16>(".u16");
  check_integer<s16>(".s16");
  check_integer<u32>(".u32");
  check_integer<s32>(".s32");
  check_integer<u64>(".u64");
  check_integer<s64>(".s64");
  for (const Operator& op : unsigned_operators) {
    check_setp<u16>(op, ".u16", itself);
    check_setp<u32>(op, ".u32", itself);
    check_setp<u64>(op, ".u64", itself);
  }
  for (const Operator& op : {ordered_operators[0], ordered_operators[1]}) {
    check_setp<u16>(op, ".b16", itself);
    check_setp<u32>(op, ".b32", itself);
    check_setp<u64>(op, ".b64", itself);
  }
}

TEST_CASE("setp of floating types") {
  check_floating<float>(".f32", itself);
  check_floating<float>(".ftz.f32", flush);
  check_floating<double>(".f64", itself);
  check_floating<u16>(".f16", f16);
  check_floating<u16>(".ftz.f16", flushed_f16);
  check_floating<u16>(".bf16", bf16);
  for (const Operator& op : {ordered_operators[2], unordered_operators[3]}) {
    check_folds<float>(op, ".f32", itself);
    check_folds<double>(op, ".f64", itself);
    check_folds<u16>(op, ".bf16", bf16);
    check_complements<float>(op, ".f32", itself);
    check_complements<double>(op, ".f64", itself);
  }
}

namespace {

template <class Value>
void check_pairs(const std::string& type, Value value, u32 one, const std::string& ftz) {
  for (const auto& operators :
       {std::vector<Operator>(std::begin(ordered_operators), std::end(ordered_operators)),
        std::vector<Operator>(std::begin(unordered_operators), std::end(unordered_operators))})
    for (const Operator& op : operators) {
      const auto low = [&](u32 a, u32 b) {
        return (op.relations & relation(value(static_cast<u16>(a)), value(static_cast<u16>(b)))) != 0;
      };
      const auto high = [&](u32 a, u32 b) { return low(a >> 16, b >> 16); };
      const std::string setp = "setp." + op.name + ftz + "." + type, set = "set." + op.name + ftz;
      check_lanes<Predicate, u32, u32>(setp + " %d|_, %s0, %s1;", low);
      check_lanes<Predicate, u32, u32>(setp + " _|%d, %s0, %s1;", high);
      check_lanes<u32, u32, u32>(set + "." + type + "." + type + " %d, %s0, %s1;", [&](u32 a, u32 b) {
        return (low(a, b) ? one : 0) + (high(a, b) ? one << 16 : 0);
      });
      check_lanes<u32, u32, u32>(set + ".u32." + type + " %d, %s0, %s1;", [&](u32 a, u32 b) {
        return (low(a, b) ? 0xffff : 0) + (high(a, b) ? 0xffff0000 : 0);
      });
      check_lanes<u32, u32, u32, Predicate>(
          set + ".and.s32." + type + " %d, %s0, %s1, !%s2;", [&](u32 a, u32 b, Predicate c) {
            return is(c) ? 0 : (low(a, b) ? 0xffff : 0) + (high(a, b) ? 0xffff0000 : 0);
          });
    }
  check_lanes<Predicate, u32, u32, Predicate>(
      "setp.lt.xor" + ftz + "." + type + " _|%d, %s0, %s1, %s2;", [&](u32 a, u32 b, Predicate c) {
        return (value(static_cast<u16>(a >> 16)) < value(static_cast<u16>(b >> 16))) != is(c);
      });
}

}  // namespace

TEST_CASE("setp and set of pairs of 16-bit floating types") {
  check_pairs("f16x2", f16, 0x3c00, "");
  check_pairs("f16x2", flushed_f16, 0x3c00, ".ftz");
  check_pairs("bf16x2", bf16, 0x3f80, "");
}

namespace {

/// set.op.D.S for every operator of the source type.
template <class D, class S, class Value>
void check_set(const std::string& result, const std::string& source, D truth, Value value, bool floating) {
  std::vector<Operator> operators(std::begin(ordered_operators), std::end(ordered_operators));
  if (floating)
    operators.insert(operators.end(), std::begin(unordered_operators), std::end(unordered_operators));
  for (const Operator& op : operators) {
    const auto holds = [&](S a, S b) { return (op.relations & relation(value(a), value(b))) != 0; };
    check_lanes<D, S, S>("set." + op.name + "." + result + "." + source + " %d, %s0, %s1;",
                         [&](S a, S b) { return holds(a, b) ? truth : D{}; });
  }
  check_lanes<D, S, S, Predicate>(
      "set.gt.or." + result + "." + source + " %d, %s0, %s1, %s2;",
      [&](S a, S b, Predicate c) { return value(a) > value(b) || is(c) ? truth : D{}; });
}

template <class S, class Value>
void check_set_of(const std::string& source, Value value, bool floating) {
  check_set<u32, S>("u32", source, ~0u, value, floating);
  check_set<s32, S>("s32", source, -1, value, floating);
  if (source != "f16" && source != "bf16") check_set<float, S>("f32", source, 1.0f, value, floating);
  if (source != "bf16") check_set<u16, S>("f16", source, 0x3c00, value, floating);
  check_set<u16, S>("bf16", source, 0x3f80, value, floating);
}

}  // namespace

TEST_CASE("set of every source and result") {
  check_set_of<u16>("u16", itself, false);
  check_set_of<s16>("s16", itself, false);
  check_set_of<u32>("u32", itself, false);
  check_set_of<s32>("s32", itself, false);
  check_set_of<u64>("u64", itself, false);
  check_set_of<s64>("s64", itself, false);
  check_set_of<float>("f32", itself, true);
  check_set_of<double>("f64", itself, true);
  check_set_of<u16>("f16", f16, true);
  check_set_of<u16>("bf16", bf16, true);
  for (const std::string result : {"u16", "s16"}) {
    check_set<u16, u16>(result, "f16", 0xffff, f16, true);
    check_set<u16, u16>(result, "bf16", 0xffff, bf16, true);
  }
  check_lanes<u32, float, float>("set.eq.ftz.u32.f32 %d, %s0, %s1;",
                                 [](float a, float b) { return flush(a) == flush(b) ? ~0u : 0u; });
}

namespace {

template <class T>
void check_selection(const std::string& type) {
  check_lanes<T, T, T, Predicate>("selp." + type + " %d, %s0, %s1, %s2;",
                                  [](T a, T b, Predicate c) { return is(c) ? a : b; });
  check_lanes<T, T, T, s32>("slct." + type + ".s32 %d, %s0, %s1, %s2;",
                            [](T a, T b, s32 c) { return c < 0 ? b : a; });
  check_lanes<T, T, T, float>("slct." + type + ".f32 %d, %s0, %s1, %s2;",
                              [](T a, T b, float c) { return std::isnan(c) || c < 0 ? b : a; });
  check_lanes<T, T, T, float>("slct.ftz." + type + ".f32 %d, %s0, %s1, %s2;",
                              [](T a, T b, float c) { return std::isnan(c) || flush(c) < 0 ? b : a; });
}

}  // namespace

TEST_CASE("selp and slct of every type") {
  check_selection<u16>("b16");
  check_selection<u16>("u16");
  check_selection<s16>("s16");
  check_selection<u32>("b32");
  check_selection<u32>("u32");
  check_selection<s32>("s32");
  check_selection<u64>("b64");
  check_selection<u64>("u64");
  check_selection<s64>("s64");
  check_selection<float>("f32");
  check_selection<double>("f64");
}

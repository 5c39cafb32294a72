#include "tests/operations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/exact_rounding.h"

namespace emulator::test {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using s128 = __int128;
using u128 = unsigned __int128;

// Operands of the 16-bit floating types, as their values.
struct F16 {
  double value;
};
struct Bf16 {
  double value;
};
struct F16x2 {
  double low, high;
};
struct Bf16x2 {
  double low, high;
};
/// An operand that must be an immediate from 0 to 255.
struct Literal {
  u32 value;
};

template <class T>
constexpr Bank bank_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Bank::pred;
  else if constexpr (std::is_same_v<T, float>)
    return Bank::f32;
  else if constexpr (std::is_same_v<T, double>)
    return Bank::f64;
  else if constexpr (std::is_same_v<T, F16>)
    return Bank::f16;
  else if constexpr (std::is_same_v<T, Bf16>)
    return Bank::bf16;
  else if constexpr (std::is_same_v<T, F16x2>)
    return Bank::f16x2;
  else if constexpr (std::is_same_v<T, Bf16x2>)
    return Bank::bf16x2;
  else
    return sizeof(T) == 2 ? Bank::b16 : sizeof(T) == 4 ? Bank::b32 : Bank::b64;
}

template <class T>
T from_bits(u64 bits) {
  if constexpr (std::is_same_v<T, bool>)
    return bits != 0;
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(static_cast<u32>(bits));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(bits);
  else if constexpr (std::is_same_v<T, F16>)
    return {decode(f16_format, static_cast<u16>(bits))};
  else if constexpr (std::is_same_v<T, Bf16>)
    return {decode(bf16_format, static_cast<u16>(bits))};
  else if constexpr (std::is_same_v<T, F16x2>)
    return {decode(f16_format, static_cast<u16>(bits)), decode(f16_format, static_cast<u16>(bits >> 16))};
  else if constexpr (std::is_same_v<T, Bf16x2>)
    return {decode(bf16_format, static_cast<u16>(bits)), decode(bf16_format, static_cast<u16>(bits >> 16))};
  else if constexpr (std::is_same_v<T, Literal>)
    return {static_cast<u32>(bits)};
  else
    return static_cast<T>(bits);
}

template <class T>
u64 to_bits(T value) {
  if constexpr (std::is_same_v<T, bool>)
    return value;
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<u32>(value);
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<u64>(value);
  else if constexpr (std::is_same_v<T, F16>)
    return encode(f16_format, value.value);
  else if constexpr (std::is_same_v<T, Bf16>)
    return encode(bf16_format, value.value);
  else if constexpr (std::is_same_v<T, F16x2>)
    return encode(f16_format, value.low) | u64{encode(f16_format, value.high)} << 16;
  else if constexpr (std::is_same_v<T, Bf16x2>)
    return encode(bf16_format, value.low) | u64{encode(bf16_format, value.high)} << 16;
  else
    return static_cast<std::make_unsigned_t<T>>(value);
}

/// The list under construction. An instruction is added with a function whose parameters are its sources and whose result is its own;
/// a parameter `bool&` is the carry flag.
class Operations {
 public:
  template <class F>
  Operation& add(std::string text, F function) {
    // Functions without captures become pointers: fewer types to compile.
    if constexpr (requires { +function; })
      return add_function(std::move(text), std::function(+function));
    else
      return add_function(std::move(text), std::function(function));
  }
  std::vector<Operation> list;

 private:
  template <class R, class... A>
  Operation& add_function(std::string text, std::function<R(A...)> function) {
    Operation operation;
    operation.text = std::move(text);
    operation.results = result_banks(static_cast<R*>(nullptr));
    (add_source<A>(operation), ...);
    operation.evaluate = [function](const u64* sources, u64* results, bool& carry) {
      const u64* next = sources;
      const auto take = [&]<class T>() -> T {
        if constexpr (std::is_same_v<T, bool&>)
          return carry;
        else
          return from_bits<T>(*next++);
      };
      std::tuple<A...> arguments{take.template operator()<A>()...};  // braces: in order
      const R result = std::apply(function, arguments);
      write(result, results);
    };
    return list.emplace_back(std::move(operation));
  }
  template <class R>
  static std::vector<Bank> result_banks(R*) {
    return {bank_of<R>()};
  }
  template <class R>
  static std::vector<Bank> result_banks(std::pair<R, R>*) {
    return {bank_of<R>(), bank_of<R>()};
  }
  template <class R>
  static void write(R result, u64* results) {
    results[0] = to_bits<R>(result);
  }
  template <class R>
  static void write(std::pair<R, R> result, u64* results) {
    results[0] = to_bits<R>(result.first);
    results[1] = to_bits<R>(result.second);
  }
  template <class A>
  static void add_source(Operation& operation) {
    if constexpr (std::is_same_v<A, Literal>)
      operation.sources.push_back({Bank::b32, true});
    else if constexpr (!std::is_same_v<A, bool&>)
      operation.sources.push_back({bank_of<A>()});
  }
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>)
    return ".f32";
  else if constexpr (std::is_same_v<T, double>)
    return ".f64";
  else
    return (std::is_signed_v<T> ? ".s" : ".u") + std::to_string(8 * sizeof(T));
}
template <class T>
std::string bits_name() {
  return ".b" + std::to_string(8 * sizeof(T));
}

/// The number, or the nearer end of the type's range.
template <class T>
T clamped(s128 value) {
  constexpr s128 low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  return static_cast<T>(std::clamp(value, low, high));
}

template <class T>
void add_integer(Operations& o) {
  const std::string t = type_name<T>();
  o.add("add" + t, [](T a, T b) { return static_cast<T>(s128{a} + b); });
  o.add("sub" + t, [](T a, T b) { return static_cast<T>(s128{a} - b); });
  o.add("mul.lo" + t, [](T a, T b) { return static_cast<T>(u128(a) * u128(b)); });
  o.add("mad.lo" + t, [](T a, T b, T c) { return static_cast<T>(u128(a) * u128(b) + u128(c)); });
  if constexpr (sizeof(T) < 8) {
    o.add("mul.hi" + t, [](T a, T b) { return static_cast<T>(s128{a} * b >> 8 * sizeof(T)); });
    o.add("mad.hi" + t, [](T a, T b, T c) { return static_cast<T>((s128{a} * b >> 8 * sizeof(T)) + c); });
    using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, s32, u32>,
                                    std::conditional_t<std::is_signed_v<T>, s64, u64>>;
    o.add("mul.wide" + t, [](T a, T b) { return static_cast<Wide>(s128{a} * b); });
    o.add("mad.wide" + t, [](T a, T b, Wide c) { return static_cast<Wide>(s128{a} * b + c); });
  }
  o.add("div" + t, [](T a, T b) { return b == 0 ? static_cast<T>(-1) : static_cast<T>(s128{a} / b); });
  o.add("rem" + t, [](T a, T b) { return b == 0 ? static_cast<T>(-1) : static_cast<T>(s128{a} % b); });
  o.add("min" + t, [](T a, T b) { return std::min(a, b); });
  o.add("max" + t, [](T a, T b) { return std::max(a, b); });
  o.add("sad" + t,
        [](T a, T b, T c) { return static_cast<T>(s128{c} + (a < b ? s128{b} - a : s128{a} - b)); });
  o.add("shr" + t, [](T a, u32 n) { return static_cast<T>(s128{a} >> std::min(n, 100u)); });
  if constexpr (std::is_signed_v<T>) {
    o.add("abs" + t, [](T a) { return static_cast<T>(a < 0 ? -s128{a} : s128{a}); });
    o.add("neg" + t, [](T a) { return static_cast<T>(-s128{a}); });
  } else {
    o.add("setp.lo.or" + t, [](T a, T b, bool c) { return a < b || c; });
  }
  if constexpr (sizeof(T) > 2)
    o.add("bfe" + t, [](T a, u32 b, u32 c) {
       const int length = static_cast<int>(c % 256), position = static_cast<int>(b % 256);
       if (length == 0) return T{0};
       const s128 shifted = s128{a} >> std::min(position, 100);
       if (length >= 64) return static_cast<T>(shifted);
       if (!std::is_signed_v<T> || position + length <= static_cast<int>(8 * sizeof(T))) {
         s128 field = shifted & ((s128{1} << length) - 1);
         if (std::is_signed_v<T> && field >> (length - 1)) field -= s128{1} << length;
         return static_cast<T>(field);
       }
       return static_cast<T>(shifted);
     }).immediates = false;  // positions beyond 255 are no legal immediates
}

template <class T>
void add_logic(Operations& o) {
  const std::string t = bits_name<T>();
  o.add("and" + t, [](T a, T b) { return static_cast<T>(a & b); });
  o.add("or" + t, [](T a, T b) { return static_cast<T>(a | b); });
  o.add("xor" + t, [](T a, T b) { return static_cast<T>(a ^ b); });
  o.add("not" + t, [](T a) { return static_cast<T>(~a); });
  o.add("cnot" + t, [](T a) { return static_cast<T>(!a); });
  o.add("mov" + t, [](T a) { return a; });
  o.add("shl" + t, [](T a, u32 n) { return static_cast<T>(n >= 64 ? u128{0} : u128{a} << n); });
  o.add("selp" + t, [](T a, T b, bool c) { return c ? a : b; });
  o.add("slct" + t + ".s32", [](T a, T b, s32 c) { return c < 0 ? b : a; });
  o.add("slct" + t + ".f32", [](T a, T b, float c) { return c >= 0 ? a : b; });
  if constexpr (sizeof(T) > 2) {
    o.add("popc" + t, [](T a) {
      u32 count = 0;
      for (; a; a >>= 1) count += a & 1;
      return count;
    });
    o.add("clz" + t, [](T a) {
      u32 bits = 8 * sizeof(T);
      for (; a; a >>= 1) --bits;
      return bits;
    });
    o.add("brev" + t, [](T a) {
      T reversed = 0;
      for (std::size_t i = 0; i < 8 * sizeof(T); ++i) reversed |= (a >> i & 1) << (8 * sizeof(T) - 1 - i);
      return reversed;
    });
    o.add("bfi" + t, [](T a, T b, u32 c, u32 d) {
       for (u32 i = 0; i < d % 256 && c % 256 + i < 8 * sizeof(T); ++i) {
         const T bit = T{1} << (c % 256 + i);
         b = (b & ~bit) | (a >> i & 1 ? bit : 0);
       }
       return b;
     }).immediates = false;
  }
}

void add_bits(Operations& o) {
  o.add("bfind.s32", [](s32 a) {
    for (int i = 30; i >= 0; --i)
      if ((a >> i & 1) != (a < 0)) return static_cast<u32>(i);
    return ~0u;
  });
  o.add("bfind.shiftamt.u64", [](u64 a) {
    for (u32 i = 0; i < 64; ++i)
      if (a >> (63 - i) & 1) return i;
    return ~0u;
  });
  o.add("bmsk.clamp.b32", [](u32 a, u32 b) {
    return a >= 32 ? 0u : static_cast<u32>(((u64{1} << std::min(b, 32u)) - 1) << a);
  });
  o.add("szext.wrap.s32", [](s32 a, u32 b) {
    const s64 range = s64{1} << b % 32, field = a & (range - 1);
    return static_cast<s32>(b % 32 && field >= range / 2 ? field - range : field);
  });
  o.add("lop3.b32", [](u32 a, u32 b, u32 c, Literal table) {
    u32 result = 0;
    for (int i = 0; i < 32; ++i)
      result |= (table.value >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i;
    return result;
  });
  o.add("shf.l.wrap.b32", [](u32 a, u32 b, u32 n) { return n % 32 ? b << n % 32 | a >> (32 - n % 32) : b; });
  o.add("shf.r.clamp.b32", [](u32 a, u32 b, u32 n) { return n >= 32 ? b : n ? b << (32 - n) | a >> n : a; });
  o.add("prmt.b32", [](u32 a, u32 b, u32 c) {
    u32 word = 0;
    for (int k = 0; k < 4; ++k) {
      const u32 nibble = c >> 4 * k & 15, byte = (nibble & 4 ? b : a) >> 8 * (nibble & 3) & 255;
      word |= (nibble & 8 ? byte / 128 * 255 : byte) << 8 * k;
    }
    return word;
  });
  o.add("mov.b64 $0, {$1, $2}", [](u32 a, u32 b) { return a + (u64{b} << 32); });
  o.add("mov.b32 $0, {$1, $2}", [](u16 a, u16 b) { return a + 65536u * b; });
  o.add("mov.b64 {$0, $1}, $2", [](u64 a) {
     return std::pair{static_cast<u32>(a), static_cast<u32>(a >> 32)};
   }).immediates = false;
  o.add("and.pred", [](bool a, bool b) { return a && b; });
  o.add("or.pred $0, !$1, $2", [](bool a, bool b) { return !a || b; });
  o.add("xor.pred", [](bool a, bool b) { return a != b; });
  o.add("not.pred", [](bool a) { return !a; });
}

void add_special_integer(Operations& o) {
  o.add("add.sat.s32", [](s32 a, s32 b) { return clamped<s32>(s128{a} + b); });
  o.add("sub.sat.s32", [](s32 a, s32 b) { return clamped<s32>(s128{a} - b); });
  o.add("max.relu.s32", [](s32 a, s32 b) { return std::max({a, b, 0}); });
  o.add("add.u16x2", [](u32 a, u32 b) {
     return (a + b) % 65536 + ((a / 65536 + b / 65536) % 65536) * 65536;
   }).immediates = false;
  o.add("mul24.hi.u32",
        [](u32 a, u32 b) { return static_cast<u32>(u64{a % (1 << 24)} * (b % (1 << 24)) >> 16); });
  o.add("dp4a.u32.s32", [](u32 a, u32 b, s32 c) {
    s64 sum = c;
    for (int k = 0; k < 4; ++k)
      sum += s64{static_cast<std::uint8_t>(a >> 8 * k)} * static_cast<std::int8_t>(b >> 8 * k);
    return static_cast<s32>(sum);
  });
  o.add("dp2a.hi.s32.u32", [](u32 a, u32 b, s32 c) {
    return static_cast<s32>(s64{c} + s64{static_cast<s16>(a)} * (b >> 16 & 255) +
                            s64{static_cast<s16>(a >> 16)} * (b >> 24));
  });
  o.add("add.cc.u32", [](u32 a, u32 b, bool& carry) {
    carry = u64{a} + b > 0xffffffff;
    return a + b;
  });
  o.add("addc.cc.u32", [](u32 a, u32 b, bool& carry) {
    const u64 sum = u64{a} + b + carry;
    carry = sum > 0xffffffff;
    return static_cast<u32>(sum);
  });
  o.add("addc.s64", [](s64 a, s64 b, bool& carry) { return static_cast<s64>(s128{a} + b + carry); });
  o.add("sub.cc.u64", [](u64 a, u64 b, bool& carry) {
    carry = a < b;
    return a - b;
  });
  o.add("subc.cc.s32", [](u32 a, u32 b, bool& carry) {
    const s64 difference = s64{a} - b - carry;
    carry = difference < 0;
    return static_cast<u32>(difference);
  });
  o.add("madc.hi.cc.u32", [](u32 a, u32 b, u32 c, bool& carry) {
    const u64 sum = (u64{a} * b >> 32) + c + carry;
    carry = sum > 0xffffffff;
    return static_cast<u32>(sum);
  });
}

enum Relation : unsigned { less = 1, equal = 2, greater = 4, unordered = 8 };
template <class T>
unsigned relation(T a, T b) {
  return a < b ? less : a > b ? greater : a == b ? equal : unordered;
}
struct Comparison {
  const char* name;
  unsigned relations;
  bool floating;
};
constexpr Comparison comparisons[] = {
    {"eq", 2, false},  {"ne", 5, false},  {"lt", 1, false},  {"le", 3, false}, {"gt", 4, false},
    {"ge", 6, false},  {"equ", 10, true}, {"neu", 13, true}, {"ltu", 9, true}, {"leu", 11, true},
    {"gtu", 12, true}, {"geu", 14, true}, {"num", 7, true},  {"nan", 8, true}};

template <class T>
void add_comparisons(Operations& o) {
  for (const Comparison& c : comparisons) {
    if (c.floating && !std::is_floating_point_v<T>) continue;
    const unsigned wanted = c.relations;
    o.add(std::string("setp.") + c.name + type_name<T>(),
          [wanted](T a, T b) { return (relation(a, b) & wanted) != 0; });
  }
  o.add("setp.le.and" + type_name<T>() + " $0|$1, $2, $3, !$4", [](T a, T b, bool c) {
    const bool holds = a <= b;
    return std::pair{holds && !c, !holds && !c};
  });
  o.add("set.gt.xor.u32" + type_name<T>(), [](T a, T b, bool c) { return (a > b) != c ? ~0u : 0u; });
  o.add("set.ne.f32" + type_name<T>(),
        [](T a, T b) { return relation(a, b) & (less | greater) ? 1.0f : 0.0f; });
}

struct Rounding {
  const char* name;
  Direction direction;
};
constexpr Rounding roundings[] = {
    {".rn", Direction::rn}, {".rz", Direction::rz}, {".rm", Direction::rm}, {".rp", Direction::rp}};

template <class T>
constexpr Format format_of() {
  return sizeof(T) == 4 ? f32_format : f64_format;
}
float flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// PTX's minimum and maximum: a number beats NaN; -0 is below +0.
template <class T>
T minimum(T a, T b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
}
template <class T>
T maximum(T a, T b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
}

template <class T>
void add_floating(Operations& o) {
  const std::string t = type_name<T>();
  static constexpr Format format = format_of<T>();
  for (const Rounding& r : roundings) {
    const Direction d = r.direction;
    o.add("add" + (r.name + t), [d](T a, T b) { return static_cast<T>(sum(format, d, a, b)); });
    o.add("sub" + (r.name + t), [d](T a, T b) { return static_cast<T>(sum(format, d, a, -b)); });
    o.add("mul" + (r.name + t), [d](T a, T b) { return static_cast<T>(product(format, d, a, b)); });
    o.add("fma" + (r.name + t), [d](T a, T b, T c) { return static_cast<T>(fused(format, d, a, b, c)); });
  }
  o.add("div.rn" + t, [](T a, T b) { return a / b; });
  o.add("rcp.rn" + t, [](T a) { return 1 / a; });
  o.add("sqrt.rn" + t, [](T a) { return std::sqrt(a); });
  o.add("neg" + t, [](T a) { return -a; });
  o.add("abs" + t, [](T a) { return std::abs(a); });
  o.add("min" + t, [](T a, T b) { return minimum(a, b); });
  o.add("max" + t, [](T a, T b) { return maximum(a, b); });
  o.add("mov" + t, [](T a) { return a; });
  o.add("selp" + t, [](T a, T b, bool c) { return c ? a : b; });
  o.add("testp.normal" + t, [](T a) { return std::isnormal(a) || a == 0; });
  o.add("testp.notanumber" + t, [](T a) { return std::isnan(a); });
  o.add("testp.subnormal" + t, [](T a) { return std::fpclassify(a) == FP_SUBNORMAL; });
}

float unit_interval(float x) { return std::isnan(x) || x <= 0 ? 0.0f : std::min(x, 1.0f); }

void add_single(Operations& o) {
  static constexpr Format f = f32_format;
  const auto add = [](float a, float b) { return static_cast<float>(sum(f, Direction::rn, a, b)); };
  o.add("add.ftz.f32", [add](float a, float b) { return flushed(add(flushed(a), flushed(b))); });
  o.add("add.rn.sat.f32", [add](float a, float b) { return unit_interval(add(a, b)); });
  o.add("mul.rn.ftz.f32", [](float a, float b) {
    return flushed(static_cast<float>(product(f, Direction::rn, flushed(a), flushed(b))));
  });
  o.add("fma.rm.sat.f32", [](float a, float b, float c) {
    return unit_interval(static_cast<float>(fused(f, Direction::rm, a, b, c)));
  });
  o.add("min.NaN.f32", [](float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : minimum(a, b); });
  o.add("max.ftz.f32", [](float a, float b) { return maximum(flushed(a), flushed(b)); });
  o.add("setp.lt.ftz.f32", [](float a, float b) { return flushed(a) < flushed(b); });
}

// f16 and bf16: T holds one value, or two of which each is computed alone.

template <class T>
constexpr Format half_format = std::is_same_v<T, F16> || std::is_same_v<T, F16x2> ? f16_format : bf16_format;
template <class T>
constexpr bool is_pair = std::is_same_v<T, F16x2> || std::is_same_v<T, Bf16x2>;

template <class T, class F, class... A>
T each(F f, A... values) {
  if constexpr (is_pair<T>)
    return {f(values.low...), f(values.high...)};
  else
    return {f(values.value...)};
}

template <class T>
void add_half(Operations& o, const std::string& t) {
  static constexpr Format f = half_format<T>;
  constexpr Direction rn = Direction::rn;
  o.add("add.rn" + t,
        [](T a, T b) { return each<T>([](double x, double y) { return sum(f, rn, x, y); }, a, b); });
  o.add("sub" + t,
        [](T a, T b) { return each<T>([](double x, double y) { return sum(f, rn, x, -y); }, a, b); });
  o.add("mul" + t,
        [](T a, T b) { return each<T>([](double x, double y) { return product(f, rn, x, y); }, a, b); });
  o.add("fma.rn" + t, [](T a, T b, T c) {
    return each<T>([](double x, double y, double z) { return fused(f, rn, x, y, z); }, a, b, c);
  });
  o.add("fma.rn.relu" + t, [](T a, T b, T c) {
    return each<T>(
        [](double x, double y, double z) {
          const double result = fused(f, rn, x, y, z);
          return result < 0 ? 0.0 : result + 0.0;  // -0 becomes +0
        },
        a, b, c);
  });
  o.add("neg" + t, [](T a) { return each<T>([](double x) { return -x; }, a); });
  o.add("abs" + t, [](T a) { return each<T>([](double x) { return std::abs(x); }, a); });
  o.add("min" + t, [](T a, T b) { return each<T>(minimum<double>, a, b); });
  o.add("max" + t, [](T a, T b) { return each<T>(maximum<double>, a, b); });
  o.add("max.NaN" + t, [](T a, T b) {
    return each<T>([](double x, double y) { return std::isnan(x) || std::isnan(y) ? NAN : maximum(x, y); }, a,
                   b);
  });
  for (const Comparison& c : comparisons) {
    const unsigned wanted = c.relations;
    const auto holds = [wanted](double a, double b) { return (relation(a, b) & wanted) != 0; };
    if constexpr (is_pair<T>) {
      o.add("setp." + (c.name + t) + " $0|$1, $2, $3", [holds](T a, T b) {
        return std::pair{holds(a.low, b.low), holds(a.high, b.high)};
      });
      o.add("set." + (c.name + t) + t, [holds](T a, T b) {
        return T{holds(a.low, b.low) ? 1.0 : 0.0, holds(a.high, b.high) ? 1.0 : 0.0};
      });
    } else {
      o.add("setp." + (c.name + t), [holds](T a, T b) { return holds(a.value, b.value); });
      o.add("set." + (c.name + t) + t, [holds](T a, T b) { return T{holds(a.value, b.value) ? 1.0 : 0.0}; });
    }
  }
}

// Conversions. Immediates are left out: PTX gives them no width of their own.

template <class D, class S>
void add_between_integers(Operations& o) {
  o.add("cvt" + type_name<D>() + type_name<S>(), [](S a) { return static_cast<D>(a); }).immediates = false;
  // PTX has .sat where a value of the source may lie outside of the result's range.
  if constexpr (std::cmp_less(std::numeric_limits<S>::min(), std::numeric_limits<D>::min()) ||
                std::cmp_greater(std::numeric_limits<S>::max(), std::numeric_limits<D>::max()))
    o.add("cvt.sat" + type_name<D>() + type_name<S>(), [](S a) { return clamped<D>(a); }).immediates = false;
}

/// From a value of a floating type to a whole number.
template <class D>
D to_integer(Direction direction, double x, bool from_double) {
  if (std::isnan(x))
    return from_double || sizeof(D) == 8 ? static_cast<D>(u64{1} << (8 * sizeof(D) - 1)) : D{0};
  if (std::isinf(x)) x = std::copysign(0x1p100, x);
  return clamped<D>(whole(direction, x));
}

constexpr Rounding integral_roundings[] = {
    {".rni", Direction::rn}, {".rzi", Direction::rz}, {".rmi", Direction::rm}, {".rpi", Direction::rp}};

template <class I, class T>
void add_between_integer_and_float(Operations& o) {
  for (const Rounding& r : integral_roundings) {
    const Direction d = r.direction;
    o.add("cvt" + (r.name + type_name<I>()) + type_name<T>(), [d](T a) {
       return to_integer<I>(d, a, sizeof(T) == 8);
     }).immediates = false;
  }
  for (const Rounding& r : roundings) {
    const Direction d = r.direction;
    o.add("cvt" + (r.name + type_name<T>()) + type_name<I>(), [d](I a) {
       return static_cast<T>(round_to(format_of<T>(), d, {static_cast<__float128>(a)}));
     }).immediates = false;
  }
}

template <class I>
void add_integer_conversions(Operations& o) {
  add_between_integers<I, u16>(o);
  add_between_integers<I, s16>(o);
  add_between_integers<I, u32>(o);
  add_between_integers<I, s32>(o);
  add_between_integers<I, u64>(o);
  add_between_integers<I, s64>(o);
  add_between_integer_and_float<I, float>(o);
  add_between_integer_and_float<I, double>(o);
  const std::string t = type_name<I>();
  o.add("cvt.rn.f16" + t, [](I a) {
     return F16{round_to(f16_format, Direction::rn, {static_cast<__float128>(a)})};
   }).immediates = false;
  o.add("cvt.rzi" + t + ".f16", [](F16 a) {
     return to_integer<I>(Direction::rz, a.value, false);
   }).immediates = false;
}

double rounded(Format format, Direction direction, double x) {
  return std::isfinite(x) ? round_to(format, direction, {x}) : x;
}

void add_float_conversions(Operations& o) {
  const auto add = [&](const std::string& text, auto function) { o.add(text, function).immediates = false; };
  for (const Rounding& r : roundings) {
    const Direction d = r.direction;
    add(std::string("cvt") + r.name + ".f32.f64",
        [d](double a) { return static_cast<float>(rounded(f32_format, d, a)); });
  }
  for (const Rounding& r : integral_roundings) {
    const Direction d = r.direction;
    const auto integral = [d](auto a) {
      if (!std::isfinite(a) || std::abs(a) >= 0x1p60) return a;
      return std::copysign(static_cast<decltype(a)>(whole(d, a)), a);
    };
    add(std::string("cvt") + r.name + ".f32.f32", [integral](float a) { return integral(a); });
    add(std::string("cvt") + r.name + ".f64.f64", [integral](double a) { return integral(a); });
  }
  add("cvt.f64.f32", [](float a) { return static_cast<double>(a); });
  add("cvt.sat.f32.f32", [](float a) { return unit_interval(a); });
  add("cvt.ftz.f32.f32", [](float a) { return flushed(a); });
  add("cvt.f32.f16", [](F16 a) { return static_cast<float>(a.value); });
  add("cvt.f64.f16", [](F16 a) { return a.value; });
  add("cvt.f32.bf16", [](Bf16 a) { return static_cast<float>(a.value); });
  add("cvt.rn.f16.f32", [](float a) { return F16{rounded(f16_format, Direction::rn, a)}; });
  add("cvt.rz.f16.f32", [](float a) { return F16{rounded(f16_format, Direction::rz, a)}; });
  add("cvt.rn.f16.f64", [](double a) { return F16{rounded(f16_format, Direction::rn, a)}; });
  add("cvt.rn.bf16.f32", [](float a) { return Bf16{rounded(bf16_format, Direction::rn, a)}; });
  add("cvt.rz.bf16.f32", [](float a) { return Bf16{rounded(bf16_format, Direction::rz, a)}; });
  add("cvt.rn.f16x2.f32", [](float a, float b) {
    return F16x2{rounded(f16_format, Direction::rn, b), rounded(f16_format, Direction::rn, a)};
  });
  add("cvt.rn.bf16x2.f32", [](float a, float b) {
    return Bf16x2{rounded(bf16_format, Direction::rn, b), rounded(bf16_format, Direction::rn, a)};
  });
  add("cvt.rn.relu.bf16x2.f32", [](float a, float b) {
    const auto relu = [](double x) { return x < 0 ? 0.0 : rounded(bf16_format, Direction::rn, x) + 0.0; };
    return Bf16x2{relu(b), relu(a)};
  });
  add("mov.b32 $0, {$1, $2}", [](F16 a, F16 b) { return F16x2{a.value, b.value}; });
  add("mov.b32 {$0, $1}, $2", [](Bf16x2 a) { return std::pair{Bf16{a.low}, Bf16{a.high}}; });
  // Bits of integers as numbers; the other way would show the bits of NaN.
  add("mov.b32", [](u32 a) { return std::bit_cast<float>(a); });
  add("mov.b64", [](u64 a) { return std::bit_cast<double>(a); });
  add("mov.b16", [](u16 a) { return F16{decode(f16_format, a)}; });
}

std::vector<Operation> all_operations() {
  Operations o;
  add_integer<u16>(o);
  add_integer<s16>(o);
  add_integer<u32>(o);
  add_integer<s32>(o);
  add_integer<u64>(o);
  add_integer<s64>(o);
  add_logic<u16>(o);
  add_logic<u32>(o);
  add_logic<u64>(o);
  add_bits(o);
  add_special_integer(o);
  add_comparisons<u16>(o);
  add_comparisons<s16>(o);
  add_comparisons<u32>(o);
  add_comparisons<s32>(o);
  add_comparisons<u64>(o);
  add_comparisons<s64>(o);
  add_comparisons<float>(o);
  add_comparisons<double>(o);
  add_floating<float>(o);
  add_floating<double>(o);
  add_single(o);
  add_half<F16>(o, ".f16");
  add_half<Bf16>(o, ".bf16");
  add_half<F16x2>(o, ".f16x2");
  add_half<Bf16x2>(o, ".bf16x2");
  add_integer_conversions<u16>(o);
  add_integer_conversions<s16>(o);
  add_integer_conversions<u32>(o);
  add_integer_conversions<s32>(o);
  add_integer_conversions<u64>(o);
  add_integer_conversions<s64>(o);
  add_float_conversions(o);
  return std::move(o.list);
}

}  // namespace

const std::vector<Operation>& operations() {
  static const std::vector<Operation> list = all_operations();
  return list;
}

}  // namespace emulator::test

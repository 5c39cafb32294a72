#include <cmath>

#include "instructions/float8.h"
#include "tests/float_format.h"
#include "tests/lanewise.h"

using namespace emulator;
using namespace emulator::test;
using namespace emulator::test::formats;

namespace {

using Values = std::vector<std::uint64_t>;  ///< contents of registers
__extension__ typedef __int128 Wide;

/// A type of cvt.
struct Kind {
  std::string name;
  int bytes;
  bool is_signed = false;
  const Format* format = nullptr;  ///< of a floating type
  int bits() const { return 8 * bytes; }
  int register_bytes() const { return bytes < 2 ? 2 : bytes; }
  Wide least() const { return is_signed ? -(Wide{1} << (bits() - 1)) : 0; }
  Wide largest() const { return (Wide{1} << (bits() - is_signed)) - 1; }
  std::uint64_t mask() const { return bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits()) - 1; }
  /// The value of the lowest bits of a register.
  Wide integer(std::uint64_t contents) const {
    const Wide value = contents & mask();
    return is_signed && value > largest() ? value - (Wide{1} << bits()) : value;
  }
  std::uint64_t nan() const {
    return bytes == 8 ? 0x7ff8'0000'0000'0000 : (std::uint64_t{1} << (bits() - 1)) - 1;
  }
  std::uint64_t infinity(bool negative) const { return format->beyond() | (negative ? format->sign() : 0); }
};
const Kind integers[] = {{"u8", 1},  {"s8", 1, true},  {"u16", 2}, {"s16", 2, true},
                         {"u32", 4}, {"s32", 4, true}, {"u64", 8}, {"s64", 8, true}};
const Kind f16{"f16", 2, false, &f16_format}, bf16{"bf16", 2, false, &bf16_format},
    f32{"f32", 4, false, &f32_format}, f64{"f64", 8, false, &f64_format};
const Kind floats[] = {f16, bf16, f32, f64};

struct Direction {
  std::string name;
  Rounding rounding;
};
const Direction directions[] = {
    {"rn", Rounding::nearest}, {"rz", Rounding::zero}, {"rm", Rounding::down}, {"rp", Rounding::up}};

/// Runs a statement on registers of the given widths; results and operands are the registers' contents.
template <class D, class S>
Values run_registers(const std::string& statement, const Values& source) {
  const std::vector<S> narrow(source.begin(), source.end());
  const std::vector<D> result = evaluate<D>(statement, narrow);
  return Values(result.begin(), result.end());
}
Values run_registers(const std::string& statement, const Values& source, int result_bytes, int source_bytes) {
  const auto with_result = [&]<class D>() {
    return source_bytes == 2   ? run_registers<D, std::uint16_t>(statement, source)
           : source_bytes == 4 ? run_registers<D, std::uint32_t>(statement, source)
                               : run_registers<D, std::uint64_t>(statement, source);
  };
  return result_bytes == 2   ? with_result.operator()<std::uint16_t>()
         : result_bytes == 4 ? with_result.operator()<std::uint32_t>()
                             : with_result.operator()<std::uint64_t>();
}

template <class Expected>
void check(const std::string& modifiers, const Kind& d, const Kind& s, const Values& source,
           Expected expected, int result_bytes = 0, int source_bytes = 0) {
  if (!result_bytes) result_bytes = d.register_bytes();
  if (!source_bytes) source_bytes = s.register_bytes();
  const std::string statement = "cvt" + modifiers + "." + d.name + "." + s.name + " %d, %s0;";
  const Values got = run_registers(statement, source, result_bytes, source_bytes);
  const std::uint64_t mask =
      result_bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * result_bytes) - 1;
  for (std::size_t row = 0; row < got.size(); ++row) {
    const std::uint64_t want = expected(source[row]) & mask;
    if (got[row] == want) continue;
    FAIL_CHECK(statement << std::hex << " of " << source[row] << ": " << got[row] << ", want " << want);
    return;
  }
  CHECK(true);
}

Values integer_samples(std::size_t count) {
  std::mt19937_64 random(5);
  Values values;
  while (values.size() < count) {
    const std::uint64_t bits = random(), picked = random();
    // Near powers of two, so that roundings tie and types overflow; or any bits.
    const std::uint64_t power = std::uint64_t{1} << picked % 64;
    values.push_back(picked >> 32 & 1   ? bits >> (picked >> 8 & 63)
                     : picked >> 33 & 1 ? power + (power >> (picked >> 8) % 26) + bits % 3 - 1
                                        : power - (bits % 5));
    if (picked >> 34 & 1) values.back() = -values.back();
  }
  return values;
}
Values float_samples(const Kind& kind, std::size_t count) { return sample_patterns(*kind.format, count, 9); }

/// Floating values on and beside the ties of a narrower format, and where integers end.
Values samples_between(const Kind& from, const Kind& to) {
  Values values = float_samples(from, 1024);
  const Values targets = to.format ? float_samples(to, 256) : Values{};
  const auto add = [&](Quad x) {
    const std::uint64_t pattern = round_exact(*from.format, {x}, Rounding::nearest);
    for (const std::uint64_t neighbour : {pattern, pattern + 1, pattern - 1})
      values.push_back(neighbour & (from.format->sign() | (from.format->sign() - 1)));
  };
  for (const std::uint64_t target : targets) {
    if (to.format->is_nan(target) || to.format->is_infinite(target)) continue;
    add(to.format->value(target));
    add((to.format->value(target) + to.format->value(target + 1)) / 2);
  }
  for (int power = -2; power <= 64; ++power)
    for (const double offset : {-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5})
      for (const int sign : {1, -1})
        add(sign * (static_cast<Quad>(std::ldexp(1.0, power)) + static_cast<Quad>(offset)));
  while (values.size() % 128) values.push_back(0);
  return values;
}

Wide integral(Quad value, Rounding rounding) {  // |value| < 2^100
  Wide whole = static_cast<Wide>(value);
  const Quad rest = value - static_cast<Quad>(whole);  // towards zero, so of the value's sign
  if (rest == 0) return whole;
  const int away = value < 0 ? -1 : 1;
  const Quad magnitude = rest < 0 ? -rest : rest;
  const bool outwards = rounding == Rounding::nearest
                            ? magnitude > Quad{0.5} || (magnitude == Quad{0.5} && (whole & 1))
                        : rounding == Rounding::up ? value > 0
                                                   : rounding == Rounding::down && value < 0;
  return outwards ? whole + away : whole;
}

std::uint64_t flushed(const Kind& kind, std::uint64_t pattern) {
  const std::uint64_t magnitude = pattern & (kind.format->sign() - 1);
  return magnitude >> kind.format->fraction_bits ? pattern : pattern & kind.format->sign();
}

std::uint64_t float_to_integer(const Kind& d, const Kind& s, std::uint64_t x, Rounding rounding) {
  if (s.format->is_nan(x)) {
    const bool zero = s.name != "f64" && d.bytes < 8;
    return zero ? 0 : static_cast<std::uint64_t>(d.integer(std::uint64_t{1} << (d.bits() - 1)));
  }
  const bool negative = x & s.format->sign();
  const Quad value = s.format->value(x);
  const Quad limit = static_cast<Quad>(0x1p99);
  if (s.format->is_infinite(x) || value > limit || value < -limit)
    return static_cast<std::uint64_t>(negative ? d.least() : d.largest());
  return static_cast<std::uint64_t>(std::clamp(integral(value, rounding), d.least(), d.largest()));
}

std::uint64_t to_float(const Kind& d, Exact value, bool negative_zero, Rounding rounding) {
  return round_exact(*d.format, value, rounding, negative_zero);
}

struct FloatOptions {
  bool ftz = false, sat = false, relu = false, satfinite = false, integral = false;
};
std::uint64_t float_to_float(const Kind& d, const Kind& s, std::uint64_t x, Rounding rounding,
                             FloatOptions options = {}) {
  if (options.ftz && s.name == "f32") x = flushed(s, x);
  const bool negative = x & s.format->sign();
  const std::uint64_t one = static_cast<std::uint64_t>(d.format->bias()) << d.format->fraction_bits;
  if (s.format->is_nan(x)) {
    if (options.sat) return 0;
    return d.nan();
  }
  std::uint64_t result;
  if (s.format->is_infinite(x)) {
    result = d.infinity(negative);
  } else {
    Quad value = s.format->value(x);
    if (options.integral && (value < 0 ? -value : value) < static_cast<Quad>(0x1p99))
      value = static_cast<Quad>(integral(value, rounding));
    result = to_float(d, {value}, negative, rounding);
  }
  if (options.ftz && d.name == "f32") result = flushed(d, result);
  if (options.satfinite && d.format->is_infinite(result)) --result;
  if (options.relu && negative) return 0;
  if (options.sat) return negative ? 0 : std::min(result, one);
  return result;
}

}  // namespace

TEST_CASE("cvt between integers: cut, extended, clamped by .sat; registers wider than the types") {
  const Values source = integer_samples(1024);
  for (const Kind& d : integers)
    for (const Kind& s : integers)
      for (int result_bytes = d.register_bytes(); result_bytes <= 8; result_bytes *= 2)
        for (int source_bytes = s.register_bytes(); source_bytes <= 8; source_bytes *= 2) {
          check(
              "", d, s, source,
              [&](std::uint64_t x) {
                return static_cast<std::uint64_t>(d.integer(static_cast<std::uint64_t>(s.integer(x))));
              },
              result_bytes, source_bytes);
          if (d.least() <= s.least() && d.largest() >= s.largest()) continue;
          check(
              ".sat", d, s, source,
              [&](std::uint64_t x) {
                return static_cast<std::uint64_t>(std::clamp(s.integer(x), d.least(), d.largest()));
              },
              result_bytes, source_bytes);
        }
}

TEST_CASE("cvt from integers to floating types in every direction") {
  const Values source = integer_samples(1024);
  for (const Kind& d : floats)
    for (const Kind& s : integers)
      for (const Direction& direction : directions) {
        const auto expected = [&](std::uint64_t x) {
          return to_float(d, {static_cast<Quad>(s.integer(x))}, false, direction.rounding);
        };
        check("." + direction.name, d, s, source, expected);
        check("." + direction.name, d, s, source, expected, 0, 8);
        if (!d.format || d.name == "bf16") continue;
        check("." + direction.name + ".sat", d, s, source, [&](std::uint64_t x) {
          return s.integer(x) > 0 ? static_cast<std::uint64_t>(d.format->bias()) << d.format->fraction_bits
                                  : 0;
        });
      }
}

TEST_CASE("cvt from floating types to integers in every direction") {
  for (const Kind& s : floats)
    for (const Kind& d : integers) {
      const Values source = samples_between(s, d);
      for (const Direction& direction : directions) {
        const auto expected = [&](std::uint64_t x) { return float_to_integer(d, s, x, direction.rounding); };
        check("." + direction.name + "i", d, s, source, expected);
        check("." + direction.name + "i.sat", d, s, source, expected, 8);
        if (s.name == "f32")
          check("." + direction.name + "i.ftz", d, s, source,
                [&](std::uint64_t x) { return float_to_integer(d, s, flushed(s, x), direction.rounding); });
      }
    }
}

TEST_CASE("cvt between floating types in every direction") {
  for (const Kind& s : floats)
    for (const Kind& d : floats) {
      const Values source = samples_between(s, d);
      const bool single = s.name == "f32" || d.name == "f32";
      const bool exact = s.name == d.name || d.bytes > s.bytes;
      for (const Direction& direction : directions) {
        const bool same = s.name == d.name;
        const std::string rounding = same ? "." + direction.name + "i" : exact ? "" : "." + direction.name;
        FloatOptions options;
        options.integral = same;
        const auto expected = [&](std::uint64_t x) {
          return float_to_float(d, s, x, direction.rounding, options);
        };
        check(rounding, d, s, source, [&](std::uint64_t x) {
          // f64 keeps the payload of an f64 NaN.
          if (same && s.name == "f64" && s.format->is_nan(x)) return x | 0x0008'0000'0000'0000;
          if (d.name == "f64" && s.format->is_nan(x)) {
            const int shift = f64_format.fraction_bits - s.format->fraction_bits;
            const std::uint64_t sign = x & s.format->sign() ? f64_format.sign() : 0;
            const std::uint64_t fraction = x & ((std::uint64_t{1} << s.format->fraction_bits) - 1);
            return sign | f64_format.beyond() | 0x0008'0000'0000'0000 | fraction << shift;
          }
          return expected(x);
        });
        options.sat = true;
        check(rounding + ".sat", d, s, source, expected);
        if (!single) continue;
        options.ftz = true;
        check(rounding + ".ftz.sat", d, s, source, expected);
        options.sat = false;
        if (d.name != "f64") check(rounding + ".ftz", d, s, source, expected);
      }
    }
  FloatOptions plain;
  check("", f32, f32, float_samples(f32, 512),
        [&](std::uint64_t x) { return float_to_float(f32, f32, x, Rounding::nearest, plain); });
  plain.sat = true;
  check(".sat", f32, f32, float_samples(f32, 512),
        [&](std::uint64_t x) { return float_to_float(f32, f32, x, Rounding::nearest, plain); });
}

TEST_CASE("cvt of f32 to halves, pairs and tf32 with .relu and .satfinite") {
  for (const Kind& d : {f16, bf16}) {
    const Values source = samples_between(f32, d);
    std::vector<float> high, low;
    for (const std::uint64_t x : source) high.push_back(bits_as<float>(static_cast<std::uint32_t>(x)));
    low.assign(high.rbegin(), high.rend());
    for (const bool to_zero : {false, true})
      for (const bool relu : {false, true})
        for (const bool satfinite : {false, true}) {
          const std::string modifiers =
              std::string(to_zero ? ".rz" : ".rn") + (relu ? ".relu" : "") + (satfinite ? ".satfinite" : "");
          const auto expected = [&](std::uint64_t x) {
            return float_to_float(d, f32, x, to_zero ? Rounding::zero : Rounding::nearest,
                                  {.relu = relu, .satfinite = satfinite});
          };
          check(modifiers, d, f32, source, expected);
          const std::string statement = "cvt" + modifiers + "." + d.name + "x2.f32 %d, %s0, %s1;";
          const std::vector<std::uint32_t> got = evaluate<std::uint32_t>(statement, high, low);
          for (std::size_t row = 0; row < got.size(); ++row) {
            const std::uint64_t want = expected(bits_as<std::uint32_t>(high[row])) << 16 |
                                       expected(bits_as<std::uint32_t>(low[row]));
            if (got[row] != want)
              FAIL_CHECK(statement << row << std::hex << ": " << got[row] << ", want " << want);
          }
        }
  }
  const Kind tf32{"tf32", 4, false, &tf32_format};
  const Values source = samples_between(f32, tf32);
  for (const auto& [name, rounding] :
       {Direction{".rna", Rounding::away}, {".rn", Rounding::nearest}, {".rz", Rounding::zero}})
    for (const bool relu : {false, true})
      for (const bool satfinite : {false, true})
        check(name + (relu ? ".relu" : "") + (satfinite ? ".satfinite" : ""), tf32, f32, source,
              [&, rounding = rounding](std::uint64_t x) {
                if (f32_format.is_nan(x)) return std::uint64_t{0x7fffffff};
                return float_to_float(tf32, f32, x, rounding, {.relu = relu, .satfinite = satfinite}) << 13;
              });
}

TEST_CASE("8-bit floating types") {
  for (const bool e4m3 : {true, false}) {
    const Format format = e4m3 ? e4m3_format : e5m2_format;
    const std::string name = e4m3 ? "e4m3x2" : "e5m2x2";
    // To f16: every pair.
    std::vector<std::uint16_t> pairs(65536);
    for (std::size_t k = 0; k < pairs.size(); ++k) pairs[k] = static_cast<std::uint16_t>(k);
    const auto widened = [&](std::uint32_t byte, bool relu) -> std::uint32_t {
      if (format.is_nan(byte)) return 0x7fff;
      if (relu && byte & 0x80) return 0;
      if (format.is_infinite(byte)) return 0x7c00 | (byte & 0x80) << 8;
      return static_cast<std::uint32_t>(
          round_exact(f16_format, {format.value(byte)}, Rounding::nearest, byte & 0x80));
    };
    for (const bool relu : {false, true}) {
      const std::vector<std::uint32_t> got = evaluate<std::uint32_t>(
          "cvt.rn" + std::string(relu ? ".relu" : "") + ".f16x2." + name + " %d, %s0;", pairs);
      for (std::size_t k = 0; k < pairs.size(); ++k)
        if (got[k] != (widened(k >> 8, relu) << 16 | widened(k & 255, relu)))
          FAIL_CHECK(name << std::hex << k << got[k]);
    }
    // From f32 and f16.
    const Kind kind{name, 1, false, e4m3 ? &e4m3_format : &e5m2_format};
    const auto narrowed = [&](const Kind& from, std::uint64_t x, bool relu) -> std::uint32_t {
      if (from.format->is_nan(x)) return 0x7f;
      const bool negative = x & from.format->sign();
      if (relu && negative) return 0;
      const std::uint64_t largest = format.beyond() - 1, sign = negative ? 0x80 : 0;
      if (from.format->is_infinite(x)) return static_cast<std::uint32_t>(largest | sign);
      const std::uint64_t result = round_exact(format, {from.format->value(x)}, Rounding::nearest, negative);
      return static_cast<std::uint32_t>(std::min(result & 0x7f, largest) | sign);
    };
    const Values singles = samples_between(f32, kind), halves = samples_between(f16, kind);
    for (const bool relu : {false, true}) {
      const std::string start = "cvt.rn.satfinite" + std::string(relu ? ".relu." : ".") + name;
      std::vector<float> high, low;
      for (const std::uint64_t x : singles) high.push_back(bits_as<float>(static_cast<std::uint32_t>(x)));
      low.assign(high.rbegin(), high.rend());
      std::vector<std::uint16_t> got = evaluate<std::uint16_t>(start + ".f32 %d, %s0, %s1;", high, low);
      for (std::size_t row = 0; row < got.size(); ++row) {
        const std::uint32_t want = narrowed(f32, bits_as<std::uint32_t>(high[row]), relu) << 8 |
                                   narrowed(f32, bits_as<std::uint32_t>(low[row]), relu);
        if (got[row] != want)
          FAIL_CHECK(start << ".f32 of " << high[row] << ", " << low[row] << std::hex << ": " << got[row]
                           << ", want " << want);
      }
      std::vector<std::uint32_t> both;
      for (std::size_t k = 0; k < halves.size(); ++k)
        both.push_back(static_cast<std::uint32_t>(halves[k] << 16 | halves[halves.size() - 1 - k]));
      got = evaluate<std::uint16_t>(start + ".f16x2 %d, %s0;", both);
      for (std::size_t row = 0; row < got.size(); ++row) {
        const std::uint32_t want =
            narrowed(f16, both[row] >> 16, relu) << 8 | narrowed(f16, both[row] & 0xffff, relu);
        if (got[row] != want)
          FAIL_CHECK(start << ".f16x2 of " << std::hex << both[row] << ": " << got[row] << ", want " << want);
      }
    }
  }
}

TEST_CASE("cvt.pack clamps two integers and joins them") {
  const Values samples = integer_samples(1024);
  std::vector<std::int32_t> a, b;
  std::vector<std::uint32_t> c;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    a.push_back(static_cast<std::int32_t>(samples[row]));
    b.push_back(static_cast<std::int32_t>(samples[samples.size() - 1 - row]));
    c.push_back(static_cast<std::uint32_t>(samples[row] * 7));
  }
  for (const int bits : {2, 4, 8, 16})
    for (const bool is_signed : {false, true}) {
      const std::string start = "cvt.pack.sat." + std::string(is_signed ? "s" : "u") + std::to_string(bits);
      const std::vector<std::uint32_t> got =
          bits == 16 ? evaluate<std::uint32_t>(start + ".s32 %d, %s0, %s1;", a, b)
                     : evaluate<std::uint32_t>(start + ".s32.b32 %d, %s0, %s1, %s2;", a, b, c);
      for (std::size_t row = 0; row < got.size(); ++row) {
        const std::int64_t least = is_signed ? -(std::int64_t{1} << (bits - 1)) : 0;
        const std::int64_t largest = (std::int64_t{1} << (bits - is_signed)) - 1;
        std::uint32_t want = 0;
        for (int bit = 0; bit < 32; ++bit) {
          const std::int64_t x = std::clamp<std::int64_t>(bit < bits ? b[row] : a[row], least, largest);
          const std::uint32_t source =
              bit < 2 * bits ? static_cast<std::uint32_t>(x >> bit % bits) : c[row] >> (bit - 2 * bits);
          want |= (source & 1) << bit;
        }
        if (got[row] != want)
          FAIL_CHECK(start << " row " << row << std::hex << ": " << got[row] << ", want " << want);
      }
    }
}

TEST_CASE("Conversions that PTX does not have are refused") {
  for (const char* statement :
       {"cvt.s32.f32 %r1, %f1;", "cvt.f32.s32 %f1, %r1;", "cvt.f32.f64 %f1, %fd1;",
        "cvt.rni.f32.s32 %f1, %r1;", "cvt.rn.s32.f32 %r1, %f1;", "cvt.rzi.f32.f64 %f1, %fd1;",
        "cvt.rn.u32.u64 %r1, %rd1;", "cvt.rm.f16x2.f32 %r1, %f1, %f2;", "cvt.tf32.f32 %r1, %f1;",
        "cvt.rn.e4m3x2.f32 %h1, %f1, %f2;", "cvt.ftz.u32.u64 %r1, %rd1;",
        "cvt.rn.satfinite.f32.f64 %f1, %fd1;", "cvt.pack.s16.s32 %r1, %r2, %r3;"}) {
    Module module({kernel_text(0, statement)}, 0);
    CHECK_MESSAGE(run(module, {}, {}) != 0, statement);
    CHECK_FALSE(take_reports().empty());
  }
}

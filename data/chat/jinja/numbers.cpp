#include "data/chat/jinja/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/quote.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

constexpr std::string_view beyond = "an integer of more than 128 bits, which this build does not have";

/// By reference, as `overflow` may be computed after the other argument.
Integer checked(bool overflow, const Integer& result) {
  if (overflow) raise(beyond);
  return result;
}

Integer multiplied(Integer a, Integer b) {
  Integer result = 0;
  return checked(__builtin_mul_overflow(a, b, &result), result);
}

Integer floor_quotient(Integer a, Integer b) {
  if (b == 0) raise("division by zero");
  if (b == -1) return negated(a);
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Integer floor_remainder(Integer a, Integer b) {
  if (b == 0) raise("division by zero");
  if (b == -1) return 0;
  const Integer remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Integer raised(Integer base, Integer exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  if (exponent > 127) raise(beyond);
  Integer result = 1;
  for (Integer i = 0; i < exponent; ++i) result = multiplied(result, base);
  return result;
}

double float_remainder(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) remainder += b;
  } else {
    remainder = std::copysign(0.0, b);
  }
  return remainder;
}

double floor_quotient(double a, double b) {
  const double quotient = (a - float_remainder(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

double power(double a, double b) {
  if (a == 0 && b < 0) raise("0.0 to a negative power");
  if (a < 0 && b != std::trunc(b) && std::isfinite(b)) raise("a negative number to a broken power");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    raise("a power that is too large for a float");
  return result;
}

Value integer_arithmetic(Operator op, Integer a, Integer b) {
  Integer result = 0;
  switch (op) {
    case Operator::add:
      return checked(__builtin_add_overflow(a, b, &result), result);
    case Operator::subtract:
      return checked(__builtin_sub_overflow(a, b, &result), result);
    case Operator::multiply:
      return multiplied(a, b);
    case Operator::divide:
      if (b == 0) raise("division by zero");
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    case Operator::floor_divide:
      return floor_quotient(a, b);
    case Operator::modulo:
      return floor_remainder(a, b);
    default:
      if (b < 0) return power(static_cast<double>(a), static_cast<double>(b));
      return raised(a, b);
  }
}

Value float_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return a + b;
    case Operator::subtract:
      return a - b;
    case Operator::multiply:
      return a * b;
    case Operator::power:
      return power(a, b);
    default:
      break;
  }
  if (b == 0) raise("division by zero");
  if (op == Operator::divide) return a / b;
  return op == Operator::modulo ? float_remainder(a, b) : floor_quotient(a, b);
}

/// Takes out the underscores between digits; nothing where one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      return std::nullopt;
    }
  }
  return out;
}

/// Reads the base from a prefix such as 0x, and takes the prefix off, where `base` allows it.
int take_prefix(std::string_view& digits, int base) {
  if (digits.size() > 1 && digits[0] == '0') {
    const char letter = static_cast<char>(digits[1] | 0x20);
    const int said = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (said != 0 && (base == 0 || base == said)) {
      digits.remove_prefix(2);
      if (!digits.empty() && digits[0] == '_') digits.remove_prefix(1);
      return said;
    }
  }
  return base == 0 ? 10 : base;
}

Integer round_to_tens(Integer value, std::int64_t tens) {
  if (tens > 38) return 0;
  const Integer unit = raised(10, tens);
  const Integer down = multiplied(floor_quotient(value, unit), unit);
  const Integer rest = value - down;
  if (rest * 2 < unit) return down;
  if (rest * 2 > unit) return down + unit;
  return floor_quotient(value, unit) % 2 == 0 ? down : down + unit;
}

}  // namespace

std::string integer_text(Integer value, unsigned base) {
  if (value == 0) return "0";
  std::string digits;
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  for (; rest != 0; rest /= base) digits += "0123456789abcdefghijklmnopqrstuvwxyz"[rest % base];
  if (value < 0) digits += '-';
  std::ranges::reverse(digits);
  return digits;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    const int size = std::abs(exponent);
    return cat(shortest.substr(0, e), "e", exponent < 0 ? "-" : "+", size < 10 ? "0" : "", size);
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string text(buffer, fixed);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::optional<Integer> parse_integer(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string trimmed(strip(text));
  std::string_view digits = trimmed;
  const bool minus = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  const int asked = base;
  base = take_prefix(digits, base);
  const auto plain = without_underscores(digits);
  if (!plain || plain->empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : *plain) {
    if (digit_value(c) >= base) return std::nullopt;
    Integer next = 0;
    value = checked(__builtin_mul_overflow(value, Integer{base}, &next) ||
                        __builtin_sub_overflow(next, Integer{digit_value(c)}, &next),
                    next);  // negative, as the smallest integer has no positive counterpart
  }
  if (asked == 0 && base == 10 && (*plain)[0] == '0' && value != 0) return std::nullopt;  // 010
  return minus ? value : negated(value);
}

std::optional<double> parse_float(std::string_view text) {
  const std::string_view trimmed = strip(text);
  const auto plain = without_underscores(trimmed);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view rest = *plain;
  const bool minus = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (rest.find('(') != std::string_view::npos) return std::nullopt;  // nan(...)
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(rest).c_str(), nullptr);
  return minus ? -value : value;
}

std::optional<Integer> integer_of(double value) {
  if (std::isnan(value)) return std::nullopt;
  if (std::isinf(value)) raise("an infinite number has no integer");
  if (!fits_integer(value)) raise(beyond);
  return static_cast<Integer>(value);
}

double to_double(const Value& number) {
  return number.is_float() ? number.real() : static_cast<double>(number.integer());
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

std::string_view symbol_of(Operator op) {
  constexpr std::string_view symbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return symbols[static_cast<int>(op)];
}

Value arithmetic(Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.integer(), b.integer());
  return float_arithmetic(op, to_double(a), to_double(b));
}

Integer negated(Integer value) {
  Integer result = 0;
  return checked(__builtin_sub_overflow(Integer{0}, value, &result), result);
}

Value rounded(const Value& value, std::int64_t digits) {
  if (value.is_integral()) return digits >= 0 ? value.integer() : round_to_tens(value.integer(), -digits);
  const double real = value.real();
  if (!std::isfinite(real) || digits > 323) return real;
  if (digits < -308) return std::copysign(0.0, real);
  if (digits >= 0) {
    char buffer[800];  // 309 digits, the point and 323 more
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), real);
    return std::strtod(buffer, nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(real / unit) * unit;
}

}  // namespace nemocube::jinja

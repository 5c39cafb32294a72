#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/numbers.h"

namespace nemocube::jinja {

namespace {

constexpr int max_precision = 1000;

std::string grouped(const std::string& digits, char separator, std::size_t width) {
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % width == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string float_digits(double value, const NumberStyle& style) {
  if (std::isnan(value)) return std::isupper(static_cast<unsigned char>(style.type)) ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(static_cast<unsigned char>(style.type)) ? "INF" : "inf";
  const int precision = style.precision < 0 ? 6 : style.precision;
  if (precision > max_precision)
    raise("want at most ", max_precision, " digits behind the point, got ", precision);
  const char type = style.type == '%' ? 'f' : style.type;
  const char format[] = {'%',
                         style.alternate ? '#' : '.',
                         style.alternate ? '.' : '*',
                         style.alternate ? '*' : type,
                         style.alternate ? type : '\0',
                         '\0'};
  std::string out(static_cast<std::size_t>(precision) + 400, '\0');
  out.resize(static_cast<std::size_t>(std::snprintf(out.data(), out.size(), format, precision, value)));
  return style.type == '%' ? out + "%" : out;
}

}  // namespace

NumberText number_text(const Value& number, const NumberStyle& style) {
  NumberText text;
  const bool real = std::string_view("eEfFgG%").find(style.type) != std::string_view::npos;
  const double value = real ? to_double(number) : 0;
  const bool negative = real ? std::signbit(value) && !std::isnan(value) : number.integer() < 0;
  text.sign = negative ? "-" : style.sign == '-' ? "" : std::string(1, style.sign);
  if (real) {
    text.digits = float_digits(std::abs(style.type == '%' ? value * 100 : value), style);
  } else {
    const unsigned base = style.type == 'x' || style.type == 'X' ? 16
                          : style.type == 'o'                    ? 8
                          : style.type == 'b'                    ? 2
                                                                 : 10;
    text.digits = integer_text(number.integer(), base);
    if (negative) text.digits.erase(0, 1);
    if (style.type == 'X')
      std::ranges::transform(text.digits, text.digits.begin(),
                             [](unsigned char c) { return std::toupper(c); });
    if (style.alternate && base != 10) text.prefix = std::string("0") + style.type;
  }
  if (style.grouping != '\0')
    text.digits = grouped(text.digits, style.grouping, real || style.type == 'd' ? 3 : 4);
  return text;
}

std::string padded(std::string_view text, std::string_view fill, std::int64_t left, std::int64_t right,
                   Budget& budget) {
  const auto times = [&](std::int64_t count) {
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
    budget.check_text(n);
    budget.spend_text(n * fill.size());
    return n;
  };
  const std::size_t before = times(left), after = times(right);
  std::string out;
  for (std::size_t i = 0; i < before; ++i) out += fill;
  out += text;
  for (std::size_t i = 0; i < after; ++i) out += fill;
  return out;
}

}  // namespace nemocube::jinja

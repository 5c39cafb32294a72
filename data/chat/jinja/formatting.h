#pragma once
#include <string>
#include <string_view>

#include "data/chat/jinja/interpreter.h"

/// Python's two ways to format texts.
namespace nemocube::jinja {

/// format % values: %s %r %d %i %u %x %X %o %c %e %f %g (and upper case) with flags, width and precision.
Value format_percent(Interpreter& interpreter, const Value& format, const Value& values);

/// format.format(...): {}, {0}, {name}, {a.b[c]}, conversions !s and !r, and for texts and numbers the format
/// fill, align, sign, #, 0, width, comma or underscore, precision and type.
Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments);

/// `text` between `left` and `right` repetitions of `fill`.
std::string padded(std::string_view text, std::string_view fill, std::int64_t left, std::int64_t right,
                   Budget& budget);

/// How a number is written.
struct NumberStyle {
  char type = 'd';  ///< d x X o b; e E f F g G %
  bool alternate = false;
  int precision = -1;
  char sign = '-';  ///< '+' and ' ' show one for positive numbers too
  char grouping = '\0';
};

/// The sign, then the prefix such as 0x, then the digits.
struct NumberText {
  std::string sign, prefix, digits;
};
NumberText number_text(const Value& number, const NumberStyle& style);

}  // namespace nemocube::jinja

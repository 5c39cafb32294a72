#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/chat/jinja/value.h"

/// Numbers as Python computes, reads and prints them.
namespace nemocube::jinja {

std::string integer_text(Integer value, unsigned base = 10);
/// The shortest text that reads back as the same number: 1.0, 1e-07, inf.
std::string float_text(double value);

/// Python's int(text, base), base 0 and 2 to 36; nothing where Python raises ValueError. Throws Failure
/// beyond 128 bits.
std::optional<Integer> parse_integer(std::string_view text, int base);
/// Python's float(text).
std::optional<double> parse_float(std::string_view text);
/// Python's int(float). Throws Failure for infinities and beyond 128 bits; nothing for a value that is not a
/// number.
std::optional<Integer> integer_of(double value);
/// Whether the whole part of `value` has at most 128 bits. False for infinities and nan.
inline bool fits_integer(double value) { return value >= -0x1p127 && value < 0x1p127; }
double to_double(const Value& number);
/// 0 to 35 of the digits 0-9, a-z and A-Z; 99 of other characters.
int digit_value(char c);

enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power };
std::string_view symbol_of(Operator op);
/// Of two numbers. Throws Failure for divisions by zero, and beyond 128 bits.
Value arithmetic(Operator op, const Value& a, const Value& b);
Integer negated(Integer value);

/// Python's round(value, digits).
Value rounded(const Value& value, std::int64_t digits);

}  // namespace nemocube::jinja

#include <algorithm>
#include <cmath>

#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/numbers.h"

namespace nemocube::jinja {

namespace {

const Value& want_number(std::string_view filter, const Value& value) {
  if (!value.is_number()) raise(filter, " wants a number, got ", kind_of(value));
  return value;
}

Value absolute(Interpreter&, const Value& value, const Arguments& arguments) {
  bind("abs", arguments, {});
  want_number("abs", value);
  if (value.is_float()) return std::abs(value.real());
  return value.integer() < 0 ? negated(value.integer()) : value.integer();
}

std::optional<double> as_float(const Value& value) {
  if (value.is_number()) return to_double(value);
  if (value.is_undefined()) refuse_undefined(value);
  return value.is_text() ? parse_float(value.bytes()) : std::nullopt;
}

Value to_float(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("float", arguments, {"default"});
  const auto number = as_float(value);
  return number ? Value(*number) : bound.value(0, Value(0.0));
}

Value to_int(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("int", arguments, {"default", "base"});
  if (value.is_integral()) return value.integer();
  if (value.is_text())
    if (const auto integer = parse_integer(
            value.bytes(), static_cast<int>(std::clamp<std::int64_t>(bound.integer(1, 10), -1, 99))))
      return *integer;
  const auto number = as_float(value);
  const bool finite = number && (std::isfinite(*number) || value.is_float());
  const auto integer = finite ? integer_of(*number) : std::nullopt;
  return integer ? Value(*integer) : bound.value(0, Value(0));
}

Value round_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("round", arguments, {"precision", "method"});
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  want_number("round", value);
  if (method == "common") return rounded(value, bound.integer(0, 0));
  if (method != "ceil" && method != "floor") raise("round wants the method common, ceil or floor");
  const Value unit = interpreter.binary(Operator::power, Value(10), bound.value(0, Value(0)));
  const Value scaled = interpreter.binary(Operator::multiply, value, unit);
  Value whole = scaled;
  if (scaled.is_float()) {
    const auto integer = integer_of(method == "ceil" ? std::ceil(scaled.real()) : std::floor(scaled.real()));
    if (!integer) raise("round wants a number, got nan");
    whole = *integer;
  }
  return interpreter.binary(Operator::divide, whole, unit);
}

}  // namespace

void add_number_filters(FilterTable& table) {
  table["abs"] = absolute;
  table["float"] = to_float;
  table["int"] = to_int;
  table["round"] = round_filter;
}

}  // namespace nemocube::jinja

#include "data/chat/jinja/value_tests.h"

#include <map>

#include "core/quote.h"
#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/letters.h"

namespace nemocube::jinja {

namespace {

/// A test without arguments.
template <bool (*holds)(const Value&)>
bool plain(Interpreter&, const Value& value, const Arguments& arguments) {
  bind("the test", arguments, {});
  return holds(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true(const Value& value) { return value.is_bool() && value.boolean(); }
bool is_false(const Value& value) { return value.is_bool() && !value.boolean(); }
bool is_integer(const Value& value) { return value.is_integral() && !value.is_bool(); }
bool is_float(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_text(); }
bool is_mapping(const Value& value) { return value.is_mapping(); }
bool is_escaped(const Value& value) { return value.is_markup(); }
bool is_sequence(const Value& value) {
  return value.is_undefined() || value.is_text() || value.items() || value.is_mapping() || value.as<Range>();
}
bool is_callable(const Value& value) {
  return value.is_undefined() || value.as<Function>() || value.as<Loop>();
}

bool is_iterable(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("iterable", arguments, {});
  return interpreter.is_iterable(value);
}

template <bool (*holds)(std::string_view)>
bool of_text(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("the test", arguments, {});
  const std::string text = interpreter.to_text(value);
  interpreter.budget().spend(text.size());  // a pattern looks at each character
  return holds(text);
}

bool divides(Interpreter& interpreter, const Value& value, const Value& number, int rest) {
  const Value remainder = interpreter.binary(Operator::modulo, value, number);
  return equal(remainder, Value(rest), interpreter.budget());
}

bool odd(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("odd", arguments, {});
  return divides(interpreter, value, Value(2), 1);
}

bool even(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("even", arguments, {});
  return divides(interpreter, value, Value(2), 0);
}

bool divisible_by(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return divides(interpreter, value, bind("divisibleby", arguments, {"num"}, 1)[0], 0);
}

bool same_as(Interpreter&, const Value& value, const Arguments& arguments) {
  return value.same_as(bind("sameas", arguments, {"other"}, 1)[0]);
}

bool in(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return interpreter.contains(bind("in", arguments, {"seq"}, 1)[0], value);
}

bool names_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("filter", arguments, {});
  hash_of(value, interpreter.budget());  // lists and mappings are refused
  return value.is_text() && is_filter_name(value.bytes());
}

bool names_test(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("test", arguments, {});
  hash_of(value, interpreter.budget());
  return value.is_text() && find_test(value.bytes());
}

template <Comparison comparison>
bool compares(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Value other = bind("the comparison", arguments, {"other"}, 1, By::position)[0];
  return interpreter.compare(comparison, value, other);
}

using TestTable = std::map<std::string_view, ValueTest, std::less<>>;

const TestTable& tests() {
  static const TestTable table{
      {"boolean", plain<is_boolean>},
      {"callable", plain<is_callable>},
      {"defined", plain<is_defined>},
      {"divisibleby", divisible_by},
      {"escaped", plain<is_escaped>},
      {"even", even},
      {"false", plain<is_false>},
      {"filter", names_filter},
      {"float", plain<is_float>},
      {"in", in},
      {"integer", plain<is_integer>},
      {"iterable", is_iterable},
      {"lower", of_text<is_lower>},
      {"mapping", plain<is_mapping>},
      {"none", plain<is_none>},
      {"number", plain<is_number>},
      {"odd", odd},
      {"sameas", same_as},
      {"sequence", plain<is_sequence>},
      {"string", plain<is_string>},
      {"test", names_test},
      {"true", plain<is_true>},
      {"undefined", plain<is_undefined>},
      {"upper", of_text<is_upper>},
      {"==", compares<Comparison::equal>},
      {"eq", compares<Comparison::equal>},
      {"equalto", compares<Comparison::equal>},
      {"!=", compares<Comparison::unequal>},
      {"ne", compares<Comparison::unequal>},
      {">", compares<Comparison::greater>},
      {"gt", compares<Comparison::greater>},
      {"greaterthan", compares<Comparison::greater>},
      {">=", compares<Comparison::greater_or_equal>},
      {"ge", compares<Comparison::greater_or_equal>},
      {"<", compares<Comparison::less>},
      {"lt", compares<Comparison::less>},
      {"lessthan", compares<Comparison::less>},
      {"<=", compares<Comparison::less_or_equal>},
      {"le", compares<Comparison::less_or_equal>},
  };
  return table;
}

}  // namespace

const ValueTest* find_test(std::string_view name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : &found->second;
}

std::string missing_test(std::string_view name) { return cat("the test ", quote(name), " does not exist"); }

}  // namespace nemocube::jinja

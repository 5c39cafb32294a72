#pragma once
#include <string>
#include <string_view>

#include "data/chat/jinja/interpreter.h"

namespace nemocube::jinja {

/// What stands behind `is`.
using ValueTest = bool (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);

/// Null where there is no such test.
const ValueTest* find_test(std::string_view name);
std::string missing_test(std::string_view name);

}  // namespace nemocube::jinja

#pragma once
#include <string>
#include <string_view>

#include "data/chat/jinja/interpreter.h"

namespace nemocube::jinja {

/// A test behind `is`.
using ValueTest = bool (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);

/// The test of this name; null without one.
const ValueTest* find_test(std::string_view name);
std::string missing_test(std::string_view name);

}  // namespace nemocube::jinja

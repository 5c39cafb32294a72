#pragma once
#include <string_view>

#include "data/chat/jinja/interpreter.h"

namespace nemocube::jinja {

/// A method of Python's that a template may call.
struct Method {
  Value (*call)(Interpreter& interpreter, const Value& self, const Arguments& arguments);
};

/// Null where the value's type has no such method, or the sandbox forbids it.
const Method* find_method(const Value& self, std::string_view name);
const Method* find_text_method(std::string_view name);

/// Whether the method exists in Python, but the sandbox forbids it, because it changes the value, or this
/// build lacks it. For such a name no key of a mapping is looked up.
bool changes_value(const Value& self, std::string_view name);
bool is_missing_method(const Value& self, std::string_view name);

}  // namespace nemocube::jinja

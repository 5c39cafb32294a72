#pragma once
#include <optional>
#include <string>

#include "data/chat/jinja/value.h"

/// Values as texts.
namespace nemocube::jinja {

/// Python's str(value). Throws Failure for values that Python would print with an address in memory.
std::string to_text(const Value& value, Budget& budget);
/// Python's repr(value).
std::string to_repr(const Value& value, Budget& budget);
void append_repr(std::string& out, const Value& value, Budget& budget);

struct JsonStyle {
  bool ascii = false;                   ///< characters beyond ASCII as \uXXXX
  std::optional<std::string> indent{};  ///< of one level; nothing: all in one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};

/// Python's json.dumps(value). Throws Failure for values that JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace nemocube::jinja

#pragma once
#include <string>
#include <string_view>

#include "data/json/json.h"

namespace nemocube {

/// Sets a variable of chat templates from an option, NAME=VALUE; a value that is not JSON is a text. Throws Error for
/// another form, a NAME that no template can read or that is one of chat_members, and when the JSON exceeds a limit of
/// parse_json().
void set_variable(Json& variables, const std::string& option);

/// Throws Error "WHAT: ..." with the byte, counted from 1, of a text that is not UTF-8.
void check_utf8(const std::string& what, std::string_view text);

}  // namespace nemocube

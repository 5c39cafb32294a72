#pragma once
#include <string>

#include "data/json/json.h"

namespace nemocube {

/// Sets a variable of chat templates from an option, NAME=VALUE; a value that is not JSON is a text. Throws Error for
/// another form, and when the JSON exceeds a limit of parse_json().
void set_variable(Json& variables, const std::string& option);

}  // namespace nemocube

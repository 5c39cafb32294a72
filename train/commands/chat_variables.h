#pragma once
#include <string>
#include <string_view>

#include "data/json/json.h"
#include "data/text/moment.h"

namespace nemocube {

/// Sets a variable of chat templates from an option, NAME=VALUE; a value that is not JSON is a text. Throws
/// Error for another form, for a NAME that no template can read or that is in chat_members, and when the JSON
/// exceeds a limit of parse_json().
void set_variable(Json& variables, const std::string& option);

/// The moment of the option --now; the present one without
/// the option. Throws Error for another form.
Moment moment_of_option(const std::string& now);

/// Throws Error "WHAT: ..." with the byte, counted from 1, of a text that is not UTF-8.
void check_utf8(const std::string& what, std::string_view text);

}  // namespace nemocube

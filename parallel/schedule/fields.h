#pragma once
#include <string_view>
#include <vector>

namespace nemocube {

/// The text without the spaces, tabs and carriage returns at its ends.
std::string_view trimmed(std::string_view text);

/// The trimmed texts between separators: "a, ,b" has "a", "" and "b"; the empty text has one empty field.
std::vector<std::string_view> fields_of(std::string_view text, char separator);

}  // namespace nemocube

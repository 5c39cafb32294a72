#pragma once
#include <string>
#include <string_view>

namespace nemocube {

/// Python's str.lower, whatever the locale: the lower-case mapping of Unicode 14, with "İ" becoming two code
/// points and "Σ" becoming "ς" at the end of a word. pre: `text` is valid UTF-8
std::string to_lower(std::string_view text);

/// Lower case of one code point; "İ" is left alone.
char32_t to_lower(char32_t character);

}  // namespace nemocube

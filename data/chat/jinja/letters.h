#pragma once
#include <string>
#include <string_view>

/// Letter case and character classes of Python 3.11 (Unicode 14). Texts are valid UTF-8.
namespace nemocube::jinja {

/// Throws Failure for more than 1 MiB with a capital sigma, whose form depends on the letters around it.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);
std::string capitalized(std::string_view text);   ///< str.capitalize
std::string title_case(std::string_view text);    ///< str.title
std::string swapped_case(std::string_view text);  ///< str.swapcase

/// Python's str.isupper and so on. Classes beyond ASCII follow the installed PCRE2.
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_title(std::string_view text);
bool is_alphabetic(std::string_view text);
bool is_alphanumeric(std::string_view text);
bool is_decimal(std::string_view text);
bool is_digit(std::string_view text);
bool is_numeric(std::string_view text);
bool is_printable(char32_t character);

}  // namespace nemocube::jinja

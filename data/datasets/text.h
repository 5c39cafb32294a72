#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

/// Text functions that agree with Python's: offsets of code points, and white space as in str.strip,
/// str.split.
namespace nemocube {

/// Byte offset of every code point, then the offset of the end. pre: `text` is valid UTF-8
std::vector<std::size_t> character_offsets(std::string_view text);

/// Python's str.isspace of one code point: Unicode White_Space and U+001C to U+001F.
bool is_python_space(char32_t character);

/// Python's str.strip. pre: `text` is valid UTF-8
std::string_view strip(std::string_view text);

}  // namespace nemocube

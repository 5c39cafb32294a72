#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
namespace nemocube {

/// Byte offset of the first byte that is not part of a valid character; nothing when `text` is valid.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

inline bool is_valid_utf8(std::string_view text) { return !first_invalid_utf8(text); }

/// The text unit at a byte position: a character, or the longest damaged prefix of one (Unicode's "maximal
/// subpart", which is replaced by a single U+FFFD).
struct Utf8Step {
  std::size_t length = 0;  // bytes taken, at least 1
  bool valid = false;      // a whole character
  bool cut_short = false;  // invalid only because the text ends here
  char32_t character = 0;  // when valid
};

/// pre: pos < text.size()
Utf8Step utf8_step(std::string_view text, std::size_t pos);

/// Start of the character that ends at `pos`. pre: text is valid, 0 < pos <= text.size()
std::size_t previous_character(std::string_view text, std::size_t pos);

void append_utf8(std::string& out, char32_t character);

/// `bytes` with each damaged part replaced by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

/// Length of the beginning of `bytes` that appended bytes cannot change: everything except a character that
/// is cut short at the end.
std::size_t utf8_complete_prefix(std::string_view bytes);

/// Unicode property White_Space.
bool is_white_space(char32_t character);

}  // namespace nemocube

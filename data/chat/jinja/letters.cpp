#include "data/chat/jinja/letters.h"

#include <algorithm>
#include <iterator>

#include "core/utf8.h"
#include "data/chat/jinja/text.h"
#include "data/text/case_runs.h"
#include "data/text/lower_case.h"
#include "data/text/pattern.h"

namespace nemocube::jinja {

namespace {

constexpr CaseRun upper_runs[] = {
#include "data/chat/jinja/upper_case_table.inc"
};

struct UpperAndTitle {
  char32_t character;
  std::string_view upper, title;
};
constexpr UpperAndTitle uppers_and_titles[] = {
#include "data/chat/jinja/title_case_table.inc"
};

char32_t simple_upper(char32_t character) {
  if (character < 0x80) return character >= U'a' && character <= U'z' ? character - (U'a' - U'A') : character;
  return in_other_case(upper_runs, character);
}

void append_upper(std::string& out, char32_t character, bool title) {
  const auto* found = std::ranges::lower_bound(uppers_and_titles, character, {}, &UpperAndTitle::character);
  if (found != std::end(uppers_and_titles) && found->character == character)
    out += title ? found->title : found->upper;
  else
    append_utf8(out, simple_upper(character));
}

std::size_t lower_length(std::string_view character) { return to_lower(character).size(); }

/// Calls `function` with each code point, its bytes and its lower case, in which the text around decides
/// about the final sigma.
template <class Function>
void with_lower_case(std::string_view text, Function&& function) {
  const std::string lower = lower_case(text);
  std::size_t at = 0;
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    const std::size_t size = character == U'\u03a3' ? 2 : lower_length(bytes);
    function(character, bytes, std::string_view(lower).substr(at, size));
    at += size;
  });
}

bool is_cased(char32_t character, std::string_view bytes) {
  if (character < 0x80) return (character | 0x20) >= U'a' && (character | 0x20) <= U'z';
  static const Pattern cased("\\p{Cased}");
  return cased.found_in(bytes);
}

}  // namespace

std::string lower_case(std::string_view text) {
  if (text.size() > (std::size_t{1} << 20) && text.find("\u03a3") != std::string_view::npos)
    raise("want at most 1 MiB of text with a capital sigma to change its case, got ", text.size(), " bytes");
  return to_lower(text);
}

std::string upper_case(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c, std::string_view) { append_upper(out, c, false); });
  return out;
}

std::string capitalized(std::string_view text) {
  std::string out;
  bool first = true;
  with_lower_case(text, [&](char32_t character, std::string_view, std::string_view lower) {
    if (first)
      append_upper(out, character, true);
    else
      out += lower;
    first = false;
  });
  return out;
}

std::string title_case(std::string_view text) {
  std::string out;
  bool after_cased = false;
  with_lower_case(text, [&](char32_t character, std::string_view bytes, std::string_view lower) {
    if (after_cased)
      out += lower;
    else
      append_upper(out, character, true);
    after_cased = is_cased(character, bytes);
  });
  return out;
}

std::string swapped_case(std::string_view text) {
  std::string out;
  with_lower_case(text, [&](char32_t character, std::string_view bytes, std::string_view lower) {
    if (is_upper(bytes))
      out += lower;
    else if (is_lower(bytes))
      append_upper(out, character, false);
    else
      out += bytes;
  });
  return out;
}

bool is_upper(std::string_view text) {
  static const Pattern upper("\\p{Uppercase}"), other("[\\p{Lowercase}\\p{Lt}]");
  return upper.found_in(text) && !other.found_in(text);
}

bool is_lower(std::string_view text) {
  static const Pattern lower("\\p{Lowercase}"), other("[\\p{Uppercase}\\p{Lt}]");
  return lower.found_in(text) && !other.found_in(text);
}

bool is_title(std::string_view text) {
  bool any = false, right = true, after_cased = false;
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    static const Pattern title("[\\p{Uppercase}\\p{Lt}]");
    const bool cased = is_cased(character, bytes);
    if (cased) right &= title.found_in(bytes) != after_cased;
    any |= cased;
    after_cased = cased;
  });
  return any && right;
}

bool is_alphabetic(std::string_view text) {
  static const Pattern pattern("^\\p{L}+\\z");
  return pattern.found_in(text);
}

bool is_decimal(std::string_view text) {
  static const Pattern pattern("^\\p{Nd}+\\z");
  return pattern.found_in(text);
}

bool is_digit(std::string_view text) {
  // Digits of the Unicode property Numeric_Type beside the decimal ones: superscripts, circled digits and so
  // on.
  static const Pattern pattern(
      "^[\\p{Nd}\\x{b2}\\x{b3}\\x{b9}\\x{1369}-\\x{1371}\\x{19da}\\x{2070}\\x{2074}-\\x{2079}\\x{2080}-\\x{"
      "2089}"
      "\\x{2460}-\\x{2468}\\x{2474}-\\x{247c}\\x{2488}-\\x{2490}\\x{24ea}\\x{24f5}-\\x{24fd}\\x{24ff}"
      "\\x{2776}-\\x{277e}\\x{2780}-\\x{2788}\\x{278a}-\\x{2792}\\x{10a40}-\\x{10a43}\\x{10e60}-\\x{10e68}"
      "\\x{11052}-\\x{1105a}\\x{1f100}-\\x{1f10a}]+\\z");
  return pattern.found_in(text);
}

bool is_numeric(std::string_view text) {
  static const Pattern pattern("^\\p{N}+\\z");
  return pattern.found_in(text);
}

bool is_alphanumeric(std::string_view text) {
  static const Pattern pattern("^[\\p{L}\\p{N}]+\\z");
  return pattern.found_in(text);
}

bool is_printable(char32_t character) {
  if (character < 0x7f) return character >= 0x20;
  static const Pattern not_printable("[\\p{C}\\p{Z}]");
  std::string bytes;
  append_utf8(bytes, character);
  return !not_printable.found_in(bytes);
}

}  // namespace nemocube::jinja

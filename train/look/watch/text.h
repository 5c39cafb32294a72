#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Texts as lines of a terminal. A character is a code point of UTF-8, and counts as one column.
namespace nemocube {

std::size_t columns_of(std::string_view text);
/// A text from a log: one line, without terminal commands, and without `utf8` in ASCII, other characters as
/// '?'.
std::string shown(std::string_view text, bool utf8);
/// The text, cut after `columns` characters; a cut text ends in "..." where there is room.
std::string cut(std::string_view text, std::size_t columns);
/// `left` and `right` at the ends of a line; `left` is cut where both do not fit.
std::string at_both_ends(std::string_view left, std::string_view right, std::size_t columns);
/// The text with blanks behind it, of at least `columns` characters.
std::string padded(std::string_view text, std::size_t columns);
/// Lines of at most `columns` characters, broken at blanks; at most `most` lines, the last one cut.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::size_t most);

}  // namespace nemocube

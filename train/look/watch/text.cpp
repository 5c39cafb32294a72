#include "train/look/watch/text.h"

#include <algorithm>

#include "core/quote.h"

namespace nemocube {
namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::string_view first_characters(std::string_view text, std::size_t count) {
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end)
    if (begins_character(text[end]) && seen++ == count) break;
  return text.substr(0, end);
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

std::string shown(std::string_view text, bool utf8) {
  std::string out = printable(text);
  std::ranges::replace(out, '\n', ' ');
  if (utf8) return out;
  std::string ascii;
  for (const char c : out)
    if (begins_character(c)) ascii += static_cast<unsigned char>(c) < 0x80 ? c : '?';
  return ascii;
}

std::string cut(std::string_view text, std::size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  if (columns < 8) return std::string(first_characters(text, columns));
  return std::string(first_characters(text, columns - 3)) + "...";
}

std::string at_both_ends(std::string_view left, std::string_view right, std::size_t columns) {
  const std::size_t taken = columns_of(right);
  if (taken + 2 > columns) return cut(right, columns);
  return padded(cut(left, columns - taken - 2), columns - taken) + std::string(right);
}

std::string padded(std::string_view text, std::size_t columns) {
  const std::size_t taken = columns_of(text);
  return std::string(text) + std::string(columns > taken ? columns - taken : 0, ' ');
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::size_t most) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < most && columns > 0) {
    if (lines.size() + 1 == most || columns_of(text) <= columns) {
      lines.push_back(cut(text, columns));
      break;
    }
    std::string_view line = first_characters(text, columns);
    if (text[line.size()] != ' ')
      if (const std::size_t blank = line.rfind(' '); blank != line.npos && blank > 0)
        line = line.substr(0, blank);
    lines.emplace_back(line);
    text.remove_prefix(line.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return lines;
}

}  // namespace nemocube

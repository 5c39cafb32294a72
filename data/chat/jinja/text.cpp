#include "data/chat/jinja/text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_set>

namespace nemocube::jinja {

namespace {

/// The characters of a text, or white space.
class CharacterSet {
 public:
  explicit CharacterSet(std::optional<std::string_view> text) {
    if (!text) return;
    characters_.emplace();
    for_each_character(*text, [this](char32_t c, std::string_view) { characters_->insert(c); });
  }
  bool contains(char32_t c) const { return characters_ ? characters_->contains(c) : is_space(c); }

 private:
  std::optional<std::unordered_set<char32_t>> characters_;
};

constexpr std::size_t short_part = 256;  // bytes that a search may compare at each place of a text

bool ends_line(char32_t c) {
  return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

std::size_t byte_at(std::string_view text, std::size_t index) {
  std::size_t byte = 0;
  for (; index > 0 && byte < text.size(); --index) byte += utf8_step(text, byte).length;
  return byte;
}

std::size_t byte_at(const Text& text, std::size_t index) {
  if (index >= text.length) return text.bytes.size();
  return text.ascii() ? index : byte_at(text.bytes, index);
}

std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::size_t find_first(std::string_view text, std::string_view part) {
  // AddressSanitizer's memmem looks at the whole text in each call, its memchr at what is in front of the
  // byte found.
  if (part.size() == 1) return text.find(part[0]);
  const void* found = memmem(text.data(), text.size(), part.data(), part.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data())
               : std::string_view::npos;
}

/// The search of Knuth, Morris and Pratt, from the end.
std::size_t find_last(std::string_view text, std::string_view part) {
  if (part.size() <= short_part || part.size() > text.size()) return text.rfind(part);
  const auto from_end = [](std::string_view all, std::size_t i) { return all[all.size() - 1 - i]; };
  std::vector<std::uint32_t> shorter(
      part.size());  // by what matches: the next shorter end of `part` that matches too
  const auto extended = [&](std::size_t matched, char next) {
    while (matched > 0 && from_end(part, matched) != next) matched = shorter[matched - 1];
    return from_end(part, matched) == next ? matched + 1 : matched;
  };
  for (std::size_t i = 1; i < part.size(); ++i)
    shorter[i] = static_cast<std::uint32_t>(extended(shorter[i - 1], from_end(part, i)));
  std::size_t matched = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    matched = extended(matched, from_end(text, i));
    if (matched == part.size()) return text.size() - 1 - i;
  }
  return std::string_view::npos;
}

std::string_view strip_left(std::string_view text, std::optional<std::string_view> set) {
  const CharacterSet stripped(set);
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text, 0);
    if (!stripped.contains(step.character)) break;
    text.remove_prefix(step.length);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::optional<std::string_view> set) {
  const CharacterSet stripped(set);
  while (!text.empty()) {
    const std::size_t start = previous_character(text, text.size());
    if (!stripped.contains(utf8_step(text, start).character)) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> set) {
  return strip_right(strip_left(text, set), set);
}

std::vector<std::string_view> TextParts::take(bool reversed) {
  if (reversed) std::ranges::reverse(parts_);
  return std::move(parts_);
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most, bool from_right,
                                              Budget& budget) {
  TextParts parts(budget);
  while (true) {
    text = from_right ? strip_right(text) : strip_left(text);
    if (text.empty()) break;
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.add(text);
      break;
    }
    std::size_t cut = 0;  // bytes of the word
    if (from_right) {
      std::size_t start = text.size();
      while (start > 0) {
        const std::size_t before = previous_character(text, start);
        if (is_space(utf8_step(text, before).character)) break;
        start = before;
      }
      parts.add(text.substr(start));
      text = text.substr(0, start);
    } else {
      while (cut < text.size()) {
        const Utf8Step step = utf8_step(text, cut);
        if (is_space(step.character)) break;
        cut += step.length;
      }
      parts.add(text.substr(0, cut));
      text.remove_prefix(cut);
    }
  }
  return parts.take(from_right);
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t most,
                                       bool from_right, Budget& budget) {
  TextParts parts(budget);
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t found = from_right ? find_last(text, separator) : find_first(text, separator);
    if (found == std::string_view::npos) break;
    parts.add(from_right ? text.substr(found + separator.size()) : text.substr(0, found));
    text = from_right ? text.substr(0, found) : text.substr(found + separator.size());
  }
  parts.add(text);
  return parts.take(from_right);
}

void for_each_line(std::string_view text, bool keep_ends,
                   const std::function<void(std::string_view)>& function) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    std::size_t next = i + step.length;
    if (ends_line(step.character)) {
      if (step.character == '\r' && next < text.size() && text[next] == '\n') ++next;
      function(text.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) function(text.substr(begin));
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                    Budget& budget) {
  std::string out;
  if (from.empty()) {  // before each character and at the end
    for (std::size_t i = 0; most != 0;) {
      out += to;
      budget.check_text(out.size());
      --most;
      if (i == text.size()) return out;
      const std::size_t length = utf8_step(text, i).length;
      out += text.substr(i, length);
      i += length;
      if (most == 0) return out += text.substr(i);
    }
    return std::string(text);
  }
  while (most != 0) {
    const std::size_t found = find_first(text, from);
    if (found == std::string_view::npos) break;
    budget.check_text(out.size() + found + to.size());
    (out += text.substr(0, found)) += to;
    text.remove_prefix(found + from.size());
    --most;
  }
  budget.check_text(out.size() + text.size());
  return out += text;
}

std::int64_t count(std::string_view text, std::string_view part) {
  if (part.empty()) return static_cast<std::int64_t>(length_of(text)) + 1;
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = find_first(text, part)) != std::string_view::npos; ++found)
    text.remove_prefix(at + part.size());
  return found;
}

std::string escape_markup(std::string_view text, Budget& budget) {
  std::string out;
  for (const char c : text) {
    budget.check_text(out.size());
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  budget.spend_text(out.size());
  return out;
}

void append_escape(std::string& out, char32_t character) {
  char buffer[16];
  const char* format = character < 0x100 ? "\\x%02x" : character < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(character));
  out += buffer;
}

}  // namespace nemocube::jinja

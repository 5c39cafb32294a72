#include "core/quote.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/utf8.h"

namespace nemocube {
namespace {

/// How a text is shown.
struct Form {
  const char* mark = "";  ///< before and after the text
  std::size_t longest = 200;
  enum class LineEnds {
    none,
    indented,
    all
  } kept = LineEnds::none;  ///< indented: before two spaces, and the last one
};

bool is_control(char32_t c) {
  const bool c0_or_c1 = c < 0x20 || (c >= 0x7F && c < 0xA0);
  const bool separator = c == 0x2028 || c == 0x2029;
  const bool direction = c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
                         (c >= 0x2066 && c <= 0x2069);
  return c0_or_c1 || separator || direction;
}

void append_escape(std::string& out, const char* format, unsigned value) {
  char escape[8];
  std::snprintf(escape, sizeof escape, format, value);
  out += escape;
}

bool keeps_line_end(std::string_view text, std::size_t at, const Form& form) {
  const std::string_view next = text.substr(at + 1);
  return form.kept == Form::LineEnds::all ||
         (form.kept == Form::LineEnds::indented && (next.empty() || next.starts_with("  ")));
}

std::string shown(std::string_view text, const Form& form) {
  const std::size_t kept =
      text.size() <= form.longest ? text.size() : utf8_complete_prefix(text.substr(0, form.longest));
  std::string out = form.mark;
  for (std::size_t at = 0; at < kept;) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) {
      for (std::size_t i = 0; i < step.length; ++i)
        append_escape(out, "\\x%02x", static_cast<unsigned char>(text[at + i]));
    } else if (step.character == '\n' && keeps_line_end(text, at, form)) {
      out += '\n';
    } else if (step.character == '\n' || step.character == '\t' || step.character == '\r') {
      out += step.character == '\n' ? "\\n" : step.character == '\t' ? "\\t" : "\\r";
    } else if (is_control(step.character)) {
      append_escape(out, "\\u%04x", step.character);
    } else {
      out += text.substr(at, step.length);
    }
    at += step.length;
  }
  if (kept == text.size()) return out + form.mark;
  return cat(out, "...", form.mark, " (", text.size(), " bytes)");
}

/// A word of thousands of bytes is a path: its two ends say enough.
std::string with_short_paths(std::string_view message) {
  std::string text;
  constexpr std::size_t longest_word = 1000, head = 200, tail = 100;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t end = std::min(message.find_first_of(" \n", at), message.size());
    std::string_view word = message.substr(at, end - at);
    const bool colon = word.ends_with(':');
    if (colon) word.remove_suffix(1);
    if (word.size() > longest_word && word.find('/') != word.npos)
      text += cat(word.substr(0, utf8_complete_prefix(word.substr(0, head))), "...",
                  word.substr(word.size() - tail), " (", word.size(), " bytes)");
    else
      text += word;
    if (colon) text += ':';
    at = end + 1;
    if (end < message.size()) text += message[end];
  }
  return text;
}

constexpr std::size_t longest_message = 64u << 10;

}  // namespace

std::string excerpt(std::string_view text) { return shown(text, {}); }
std::string quote(std::string_view text) { return shown(text, {.mark = "'"}); }
std::string printable(std::string_view message) {
  return shown(with_short_paths(message), {.longest = longest_message, .kept = Form::LineEnds::all});
}
std::string printable_message(std::string_view message) {
  return shown(with_short_paths(message), {.longest = longest_message, .kept = Form::LineEnds::indented});
}

}  // namespace nemocube

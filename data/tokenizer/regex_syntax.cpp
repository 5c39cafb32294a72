#include "data/tokenizer/regex_syntax.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/regex_classes.h"

namespace nemocube::tok {

namespace {

bool is_alnum(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

std::string spelled(char32_t c) {
  if (is_alnum(c)) return std::string(1, static_cast<char>(c));
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\x{%x}", static_cast<unsigned>(c));
  return buffer;
}

/// One escape: a character, or the contents of a class (`outside` when it cannot stand inside brackets).
struct Escape {
  std::optional<char32_t> character;
  std::string in_class;
  std::string outside;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    if (in_.substr(0, 4) == "(?i)") {
      caseless_ = true;
      out_ = "(?i)";
      pos_ = 4;
    }
    while (pos_ < in_.size()) element();
    if (!groups_.empty()) refuse("a '(' is not closed");
    return out_;
  }

 private:
  struct Group {
    std::size_t start;
    bool caseless;
  };

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(parts..., " (at byte ", pos_, " of the expression \"", in_, "\")");
  }

  bool at_end() const { return pos_ >= in_.size(); }
  char peek() const { return at_end() ? '\0' : in_[pos_]; }
  bool take(std::string_view text) {
    if (in_.substr(pos_, text.size()) != text) return false;
    pos_ += text.size();
    return true;
  }
  char32_t next_character() {
    if (at_end()) refuse("the expression ends too early");
    const Utf8Step step = utf8_step(in_, pos_);
    if (!step.valid) refuse("not valid UTF-8");
    pos_ += step.length;
    return step.character;
  }

  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
    previous_ = 0;
  }
  void no_atom(const std::string& text) {
    out_ += text;
    atom_.reset();
    previous_ = 0;
  }

  void literal(char32_t c) {
    const char32_t before = previous_;
    check_caseless(c);
    atom(spelled(c));
    if (!caseless_) return;
    previous_ = c | 0x20;
    const auto pair = [&](char32_t a, char32_t b) { return before == a && previous_ == b; };
    if (pair('s', 's') || pair('f', 'f') || pair('f', 'i') || pair('f', 'l') || pair('s', 't')) {
      refuse("case-insensitive '", static_cast<char>(before), static_cast<char>(previous_),
             "' is not supported");
    }
  }
  void check_caseless(char32_t c) const {
    if (caseless_ && c >= 0x80) refuse("case-insensitive matching of non-ASCII letters is not supported");
  }

  void element() {
    const char c = peek();
    if (c == '\\') {
      outside_escape();
    } else if (c == '[') {
      ++pos_;
      const std::string text = bracket();
      atom(text);
    } else if (c == '(') {
      open_group();
    } else if (c == ')') {
      if (groups_.empty()) refuse("a ')' has no '('");
      ++pos_;
      out_ += ')';
      atom_ = groups_.back().start;
      caseless_ = groups_.back().caseless;
      groups_.pop_back();
      previous_ = 0;
    } else if (c == '*' || c == '+' || c == '?') {
      ++pos_;
      quantify(std::string(1, c), false, false);
    } else if (c == '{') {
      interval();
    } else if (c == '|' || c == '^' || c == '$') {
      ++pos_;
      no_atom(std::string(1, c));
    } else if (c == '.') {
      ++pos_;
      atom(".");
    } else {
      literal(next_character());
    }
  }

  void open_group() {
    static const std::vector<std::string> plain = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    Group group{out_.size(), caseless_};
    const auto kind = std::find_if(plain.begin(), plain.end(), [&](const std::string& k) { return take(k); });
    if (kind != plain.end()) {
      no_atom(*kind);
    } else if (take("(?i:")) {
      no_atom("(?i:");
      caseless_ = true;
    } else if (take("(?-i:")) {
      no_atom("(?-i:");
      caseless_ = false;
    } else if (in_.substr(pos_, 2) == "(?" || in_.substr(pos_, 2) == "(*") {
      refuse("the group \"", in_.substr(pos_, 4), "\" is not supported");
    } else {
      ++pos_;
      no_atom("(?:");
    }
    groups_.push_back(group);
  }

  void interval() {
    std::size_t end = pos_ + 1;
    std::string low, high;
    bool comma = false;
    for (; end < in_.size() && in_[end] != '}'; ++end) {
      const char c = in_[end];
      if (c == ',' && !comma) {
        comma = true;
      } else if (c >= '0' && c <= '9') {
        (comma ? high : low) += c;
      } else {
        break;
      }
    }
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      literal(next_character());
      return;
    }
    pos_ = end + 1;
    quantify(cat("{", low.empty() ? "0" : low, comma ? "," : "", high, "}"), true, !comma);
  }

  /// Oniguruma: `x{2,3}+` is `(?:x{2,3})+` and `x{2}?` is `(?:x{2})?`; after * + ? they are possessive and
  /// lazy.
  void quantify(const std::string& text, bool is_interval, bool is_fixed) {
    if (!atom_) refuse("nothing to repeat");
    const std::size_t start = *atom_;
    out_ += text;
    const char suffix = peek();
    if (suffix == '+' || suffix == '?') {
      ++pos_;
      if ((is_interval && suffix == '+') || is_fixed) {
        out_.insert(start, "(?:");
        out_ += ')';
      }
      out_ += suffix;
    }
    const char more = peek();
    if (more == '*' || more == '+' || more == '?') refuse("a repeated repetition is not supported");
    atom_.reset();
    previous_ = 0;
  }

  void outside_escape() {
    if (take("\\b")) return no_atom(boundary(true));
    if (take("\\B")) return no_atom(boundary(false));
    for (const char* anchor : {"\\A", "\\z", "\\Z"}) {
      if (take(anchor)) return no_atom(anchor);
    }
    const Escape escape = read_escape();
    if (escape.character) return literal(*escape.character);
    atom(escape.outside.empty() ? "[" + escape.in_class + "]" : escape.outside);
  }

  static std::string boundary(bool is_boundary) {
    const std::string w = "[" + word_class + "]";
    return is_boundary ? "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))"
                       : "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))";
  }

  Escape read_escape() {
    ++pos_;
    const char32_t c = next_character();
    switch (c) {
      case 't':
        return {U'\t', "", ""};
      case 'n':
        return {U'\n', "", ""};
      case 'r':
        return {U'\r', "", ""};
      case 'f':
        return {U'\f', "", ""};
      case 'v':
        return {U'\v', "", ""};
      case 'a':
        return {U'\a', "", ""};
      case 'e':
        return {char32_t{0x1B}, "", ""};
      case 's':
        return {std::nullopt, white_space_class, ""};
      case 'S':
        return {std::nullopt, not_white_space_class, ""};
      case 'd':
        return {std::nullopt, "\\p{Nd}", ""};
      case 'D':
        return {std::nullopt, "\\P{Nd}", ""};
      case 'w':
        return {std::nullopt, word_class, ""};
      case 'W':
        return {std::nullopt, "", "[^" + word_class + "]"};
      case 'h':
        return {std::nullopt, "0-9a-fA-F", ""};
      case 'H':
        return {std::nullopt, "", "[^0-9a-fA-F]"};
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      case 'x':
        return {take("{") ? hex(1, 6, true) : hex(1, 2, false), "", ""};
      case 'u':
        return {hex(4, 4, false), "", ""};
      default:
        break;
    }
    if (is_alnum(c) || c >= 0x80) {
      pos_ -= 1;
      refuse("the escape '\\", in_.substr(pos_, 1), "' is not supported");
    }
    return {c, "", ""};
  }

  char32_t hex(std::size_t least, std::size_t most, bool braced) {
    char32_t value = 0;
    std::size_t digits = 0;
    for (; digits < most; ++digits, ++pos_) {
      const char c = peek();
      const char lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<char32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + static_cast<char32_t>(lower - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < least || (braced && !take("}"))) refuse("a malformed hexadecimal escape");
    if (most == 2 && value >= 0x80) refuse("'\\x' of a single byte above 7F is not supported");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) refuse("not a Unicode character");
    return value;
  }

  Escape property(bool negated) {
    const std::size_t close = in_.find('}', pos_);
    if (!take("{") || close == std::string_view::npos) refuse("'\\p' without {name}");
    if (take("^")) negated = !negated;
    const std::string name(in_.substr(pos_, close - pos_));
    std::string key;
    for (const char c : name) {
      if (c == ' ' || c == '_' || c == '-') continue;
      if (!is_alnum(static_cast<unsigned char>(c))) refuse("the property '", name, "' is not supported");
      key += (c >= 'A' && c <= 'Z') ? static_cast<char>(c | 0x20) : c;
    }
    pos_ = close + 1;
    if (key == "space" || key == "whitespace") {
      return {std::nullopt, negated ? not_white_space_class : white_space_class, ""};
    }
    const std::string found = pcre2_property(key, name);
    const bool cased =
        found == "Lu" || found == "Ll" || found == "Lt" || found == "Uppercase" || found == "Lowercase";
    if (caseless_ && cased) refuse("the case-insensitive property '", name, "' is not supported");
    return {std::nullopt, (negated ? "\\P{" : "\\p{") + found + "}", ""};
  }

  /// The rest of a class after '['.
  std::string bracket() {
    std::string text = take("^") ? "[^" : "[";
    if (peek() == ']') refuse("an empty class");
    while (peek() != ']') {
      const std::optional<char32_t> first = class_item(text);
      if (!first) continue;
      const bool is_range = peek() == '-' && pos_ + 1 < in_.size() && in_[pos_ + 1] != ']';
      text += spelled(*first);
      if (!is_range) continue;
      ++pos_;
      std::string not_a_character;
      const std::optional<char32_t> last = class_item(not_a_character);
      if (!last) refuse("a class range must end in a character");
      if (*last < *first) refuse("an empty class range");
      text += '-';
      text += spelled(*last);
    }
    ++pos_;
    return text + "]";
  }

  /// Returns a character, or nothing after appending the contents of a class escape to `text`.
  std::optional<char32_t> class_item(std::string& text) {
    if (peek() == '[') refuse("a class inside a class is not supported");
    if (in_.substr(pos_, 2) == "&&") refuse("a class intersection is not supported");
    if (peek() != '\\') {
      const char32_t c = next_character();
      check_caseless(c);
      return c;
    }
    const Escape escape = read_escape();
    if (escape.character) {
      check_caseless(*escape.character);
      return escape.character;
    }
    if (escape.in_class.empty()) refuse("\\W or \\H inside a class is not supported");
    text += escape.in_class;
    return std::nullopt;
  }

  std::string_view in_;
  std::size_t pos_ = 0;
  std::string out_;
  bool caseless_ = false;
  std::vector<Group> groups_;
  std::optional<std::size_t> atom_;  // where the last repeatable element begins in out_
  char32_t previous_ = 0;            // literal before this one, when caseless
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace nemocube::tok

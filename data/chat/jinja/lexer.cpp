#include "data/chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/quote.h"
#include "core/utf8.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/string_literal.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

constexpr std::size_t max_source_bytes = std::size_t{1} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_hex_digit(char c) { return digit_value(c) < 16; }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text()) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(TokenKind::end, text_.size());
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view what, std::size_t at) const { return text_.substr(at).starts_with(what); }
  bool starts(std::string_view what) const { return starts(what, at_); }

  void add(TokenKind kind, std::size_t offset, std::string text = "") {
    tokens_.push_back({kind, offset, std::move(text), Value()});
  }

  std::size_t skip_spaces(std::size_t at) const { return text_.size() - strip_left(text_.substr(at)).size(); }

  /// Data up to the next tag, and the tag.
  void read_data() {
    const std::size_t begin = at_;
    std::size_t tag = text_.find('{', at_);
    while (tag != std::string_view::npos && !starts("{%", tag) && !starts("{{", tag) && !starts("{#", tag))
      tag = text_.find('{', tag + 1);
    if (tag == std::string_view::npos) {
      add(TokenKind::data, begin, std::string(text_.substr(begin)));
      at_ = text_.size();
      return;
    }
    at_ = tag + 2;
    const char sign = at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+') ? text_[at_] : ' ';
    if (sign != ' ') ++at_;
    const bool output = text_[tag + 1] == '{';
    add_data(begin, text_.substr(begin, tag - begin), sign, output);
    if (text_[tag + 1] == '#') return skip_comment(tag);
    if (output) return read_tag(tag, TokenKind::output_begin);
    if (const auto body = raw_begins()) return read_raw(tag, *body);
    read_tag(tag, TokenKind::statement_begin);
  }

  /// Data before a tag: without white space before {%-, and without blanks that begin a line before {% and
  /// {#.
  void add_data(std::size_t offset, std::string_view data, char sign, bool output) {
    if (sign == '-') {
      data = strip_right(data);
    } else if (sign != '+' && !output) {
      const std::size_t line = data.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || line_begins_) && strip(data.substr(line)).empty()) data = data.substr(0, line);
    }
    if (!data.empty()) add(TokenKind::data, offset, std::string(data));
  }

  /// Moves behind an end of a tag and the white space that goes with it.
  void pass_end(std::size_t end, bool minus, bool trims_line) {
    at_ = end;
    if (minus)
      at_ = skip_spaces(end);
    else if (trims_line && at_ < text_.size() && text_[at_] == '\n')
      ++at_;
    line_begins_ = text_[at_ - 1] == '\n';
  }

  void skip_comment(std::size_t tag) {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos)
      source_.fail(tag, "want #} that ends this comment, got the template's end");
    const char sign = end > at_ ? text_[end - 1] : ' ';
    pass_end(end + 2, sign == '-', sign != '+');
  }

  /// Where the body of {% raw %} begins, if that is the tag.
  std::optional<std::size_t> raw_begins() const {
    std::size_t at = skip_spaces(at_);
    if (!starts("raw", at)) return std::nullopt;
    at = skip_spaces(at + 3);
    if (starts("-%}", at)) return skip_spaces(at + 3);
    if (starts("%}", at)) return at + 2;
    return std::nullopt;
  }

  void read_raw(std::size_t tag, std::size_t body) {
    line_begins_ = text_[body - 1] == '\n';
    for (std::size_t end = body; (end = text_.find("{%", end)) != std::string_view::npos; ++end) {
      std::size_t at = end + 2;
      const char sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : ' ';
      at = skip_spaces(sign == ' ' ? at : at + 1);
      if (!starts("endraw", at)) continue;
      at = skip_spaces(at + 6);
      const bool minus = starts("-%}", at), plus = starts("+%}", at);
      if (!minus && !plus && !starts("%}", at)) continue;
      add_data(body, text_.substr(body, end - body), sign, false);
      return pass_end(at + (minus || plus ? 3 : 2), minus, !plus);
    }
    source_.fail(tag, "want {% endraw %} that ends this {% raw %}, got the template's end");
  }

  void read_tag(std::size_t tag, TokenKind kind) {
    add(kind, tag);
    const bool output = kind == TokenKind::output_begin;
    brackets_.clear();
    while (true) {
      at_ = skip_spaces(at_);
      if (at_ >= text_.size())
        source_.fail(tag, "want ", output ? "}}" : "%}", " that ends this tag, got the template's end");
      if (brackets_.empty() && ends_tag(output)) return;
      read_token();
    }
  }

  bool ends_tag(bool output) {
    const std::string_view end = output ? "}}" : "%}";
    const bool minus = text_[at_] == '-' && starts(end, at_ + 1);
    const bool plus = !output && text_[at_] == '+' && starts(end, at_ + 1);
    if (!minus && !plus && !starts(end)) return false;
    add(output ? TokenKind::output_end : TokenKind::statement_end, at_);
    pass_end(at_ + (minus || plus ? 3 : 2), minus, !output && !plus);
    return true;
  }

  void read_token() {
    const char c = text_[at_];
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) return read_name();
    if (c == '\'' || c == '"') return read_text();
    read_symbol();
  }

  void read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
    if (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x80)
      source_.fail(at_, "want a name of ASCII letters, digits and _, got ", quote(character_at(at_)));
    add(TokenKind::name, begin, std::string(text_.substr(begin, at_ - begin)));
  }

  std::string character_at(std::size_t at) const {
    return std::string(text_.substr(at, utf8_step(text_, at).length));
  }

  void read_text() {
    const std::size_t begin = at_;
    const char quote_mark = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote_mark) at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size())
      source_.fail(begin, "want ", quote_mark, " that ends this text, got the template's end");
    add(TokenKind::text, begin, string_literal(source_, begin + 1, text_.substr(begin + 1, at_ - begin - 1)));
    ++at_;
  }

  /// Digits with single underscores between them.
  std::size_t digits(std::size_t at, bool (*is)(char)) const {
    const std::size_t begin = at;
    while (at < text_.size() &&
           (is(text_[at]) || (text_[at] == '_' && at > begin && at + 1 < text_.size() && is(text_[at + 1]))))
      ++at;
    return at;
  }

  std::size_t exponent(std::size_t at) const {
    if (at >= text_.size() || (text_[at] | 0x20) != 'e') return at;
    std::size_t begin = at + 1;
    if (begin < text_.size() && (text_[begin] == '+' || text_[begin] == '-')) ++begin;
    const std::size_t end = begin < text_.size() && is_digit(text_[begin]) ? digits(begin, is_digit) : begin;
    return end > begin ? end : at;
  }

  void read_number() {
    const std::size_t begin = at_;
    const bool after_point = begin > 0 && text_[begin - 1] == '.';
    std::size_t end = digits(begin, is_digit);
    bool real = false;
    if (!after_point) {
      std::size_t longer = end;
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1]))
        longer = digits(end + 1, is_digit);
      longer = exponent(longer);
      real = longer > end;
      end = longer;
    }
    if (!real) end = integer_end(begin);
    at_ = end;
    add_number(begin, std::string(text_.substr(begin, end - begin)), real);
  }

  std::size_t integer_end(std::size_t begin) const {
    if (text_[begin] != '0') return digits(begin, is_digit);
    const char letter = begin + 1 < text_.size() ? static_cast<char>(text_[begin + 1] | 0x20) : ' ';
    const auto is = letter == 'x'   ? is_hex_digit
                    : letter == 'o' ? [](char c) { return c >= '0' && c <= '7'; }
                    : letter == 'b' ? [](char c) { return c == '0' || c == '1'; }
                                    : [](char c) { return c == '0'; };
    if (letter == 'x' || letter == 'o' || letter == 'b') {
      std::size_t from = begin + 2;
      if (from + 1 < text_.size() && text_[from] == '_' && is(text_[from + 1])) ++from;
      const std::size_t end = digits(from, is);
      return end > from ? end : begin + 1;
    }
    return digits(begin, is);
  }

  void add_number(std::size_t begin, const std::string& digits, bool real) {
    std::string plain = digits;
    std::erase(plain, '_');
    try {
      tokens_.push_back({real ? TokenKind::real : TokenKind::integer, begin, digits,
                         real ? Value(*parse_float(plain)) : Value(*parse_integer(plain, 0))});
    } catch (const Failure& failure) {
      source_.fail(begin, failure.what());
    }
  }

  void read_symbol() {
    static constexpr std::array<std::string_view, 26> symbols{
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view symbol : symbols) {
      if (!starts(symbol)) continue;
      balance(symbol[0]);
      add(TokenKind::symbol, at_, std::string(symbol));
      at_ += symbol.size();
      return;
    }
    source_.fail(at_, "want an expression, got the character ", quote(character_at(at_)));
  }

  void balance(char symbol) {
    static constexpr std::string_view open = "([{", close = ")]}";
    if (const auto found = open.find(symbol); found != std::string_view::npos)
      brackets_.push_back(close[found]);
    if (close.find(symbol) == std::string_view::npos) return;
    if (brackets_.empty()) source_.fail(at_, "got ", symbol, ", which no bracket in this tag opens");
    if (brackets_.back() != symbol) source_.fail(at_, "want ", brackets_.back(), ", got ", symbol);
    brackets_.pop_back();
  }

  const Source& source_;
  const std::string_view text_;
  std::size_t at_ = 0;
  bool line_begins_ = true;  // the last tag, with the white space that goes with it, ends a line
  std::string brackets_;     // that are open in the tag, as the ones that close them
  std::vector<Token> tokens_;
};

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    }
  }
  return out;
}

}  // namespace

Source::Source(std::string name, std::string_view text) : name_(std::move(name)) {
  require(text.size() <= max_source_bytes, name_, ": a template of ", text.size(), " bytes; want at most ",
          max_source_bytes);
  if (const auto bad = first_invalid_utf8(text)) nemocube::fail(name_, ": byte ", *bad + 1, " is not UTF-8");
  text_ = with_plain_line_ends(text);
  if (text_.ends_with('\n')) text_.pop_back();
}

std::string Source::place(std::size_t offset) const {
  const std::string_view before = std::string_view(text_).substr(0, std::min(offset, text_.size()));
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t column = length_of(before.substr(before.rfind('\n') + 1)) + 1;
  return cat(name_, ", line ", line, ", column ", column);
}

std::vector<Token> tokenize(const Source& source) { return Lexer(source).run(); }

std::string shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "text outside of tags";
    case TokenKind::output_begin:
      return "{{";
    case TokenKind::output_end:
      return "}}";
    case TokenKind::statement_begin:
      return "{%";
    case TokenKind::statement_end:
      return "%}";
    case TokenKind::text:
      return cat("the text ", quote(token.text));
    case TokenKind::end:
      return "the template's end";
    default:
      return quote(token.text);
  }
}

}  // namespace nemocube::jinja

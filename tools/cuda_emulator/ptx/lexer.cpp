#include "ptx/lexer.h"

#include <algorithm>
#include <array>

#include "ptx/constants.h"
#include "ptx/parser.h"

namespace emulator::ptx {
namespace {

enum Class : std::uint8_t { blank = 1, digit = 2, letter = 4, sign = 8 };

constexpr std::array<std::uint8_t, 256> classes = [] {
  std::array<std::uint8_t, 256> table{};
  for (const unsigned char c : {' ', '\t', '\r', '\n', '\v', '\f'}) table[c] = blank;
  for (unsigned c = '0'; c <= '9'; ++c) table[c] = digit;
  for (unsigned c = 'a'; c <= 'z'; ++c) table[c] = letter;
  for (unsigned c = 'A'; c <= 'Z'; ++c) table[c] = letter;
  for (const unsigned char c : {'_', '$'}) table[c] = letter;
  table['%'] = sign;
  return table;
}();

bool of(char c, int wanted) { return (classes[static_cast<unsigned char>(c)] & wanted) != 0; }

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) { advance(); }

void Lexer::skip_blanks() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (of(c, blank)) {
      line_ += c == '\n';
      ++position_;
    } else if (text_.compare(position_, 2, "//") == 0) {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else if (text_.compare(position_, 2, "/*") == 0) {
      const std::size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) {
        current_ = {TokenKind::end, text_.substr(position_, 2), line_};
        fail("a comment does not end");
      }
      line_ += static_cast<std::uint32_t>(std::count(&text_[position_], &text_[end], '\n'));
      position_ = end + 2;
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_blanks();
  const std::size_t begin = position_;
  const auto at = [&](std::size_t i) { return i < text_.size() ? text_[i] : '\0'; };
  const auto word = [&](std::size_t i, int wanted) {
    while (i < text_.size() && of(text_[i], wanted)) ++i;
    return i;
  };
  const auto token = [&](TokenKind kind, std::size_t end) {
    position_ = end;
    current_ = {kind, text_.substr(begin, end - begin), line_};
  };
  if (begin >= text_.size()) {
    position_ = text_.size();
    current_ = {TokenKind::end, text_.substr(text_.size()), line_};
    return;
  }

  const char c = text_[begin];
  if (of(c, letter)) return token(TokenKind::name, word(begin + 1, letter | digit));
  if (c == '%' && of(at(begin + 1), letter)) {
    std::size_t end = word(begin + 1, letter | digit);
    const char component = at(end + 1);  // "%tid.x"
    if (at(end) == '.' && component >= 'w' && component <= 'z' && !of(at(end + 2), letter | digit)) end += 2;
    return token(TokenKind::name, end);
  }
  if (c == '.' && of(at(begin + 1), letter | digit)) {
    std::size_t end = word(begin + 1, letter | digit);
    while (at(end) == ':' && at(end + 1) == ':') end = word(end + 2, letter | digit);
    return token(TokenKind::dotted, end);
  }
  if (of(c, digit)) {
    std::size_t end = word(begin, letter | digit);
    const bool prefixed = c == '0' && of(at(begin + 1), letter);
    if (!prefixed && at(end) == '.' && of(at(end + 1), digit)) end = word(end + 1, letter | digit);
    const char last = text_[end - 1];
    if (!prefixed && (last == 'e' || last == 'E') && (at(end) == '-' || at(end) == '+'))
      end = word(end + 1, digit);
    return token(TokenKind::number, end);
  }
  if (c == '"') {
    std::size_t end = begin + 1;
    while (at(end) != '"') {
      if (end >= text_.size() || text_[end] == '\n') {
        token(TokenKind::string, begin + 1);
        fail("a string does not end");
      }
      end += at(end) == '\\' ? 2 : 1;
    }
    return token(TokenKind::string, end + 1);
  }
  token(TokenKind::mark, begin + 1);
  if (static_cast<unsigned char>(c) < ' ') fail("a control character in the text");
}

Token Lexer::next() {
  const Token token = current_;
  advance();
  return token;
}

bool Lexer::accept(char mark) {
  if (!current_.is(mark)) return false;
  advance();
  return true;
}

bool Lexer::accept(TokenKind kind, std::string_view word) {
  if (!current_.is(kind, word)) return false;
  advance();
  return true;
}

void Lexer::expect(char mark) {
  if (!accept(mark)) fail(std::string("'") + mark + "' expected");
}

Token Lexer::expect(TokenKind kind, std::string_view what) {
  if (current_.kind != kind) fail(std::string(what) + " expected");
  return next();
}

std::uint64_t Lexer::unsigned_number() {
  const Token token = expect(TokenKind::number, "a number");
  const Immediate value = number(token.text);
  if (value.floating != Type::none) fail("an integer expected", token);
  return value.bits;
}

std::string Lexer::text_since(const Token& first) const {
  const std::string_view written(first.text.data(),
                                 static_cast<std::size_t>(current_.text.data() - first.text.data()));
  std::string text;
  text.reserve(written.size());
  bool gap = false;
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (of(written[i], blank)) {
      gap = true;
    } else if (written.compare(i, 2, "//") == 0) {
      i = std::min(written.find('\n', i), written.size());
      gap = true;
    } else if (written.compare(i, 2, "/*") == 0) {
      i = written.find("*/", i + 2) + 1;
      gap = true;
    } else {
      if (gap && !text.empty()) text += ' ';
      gap = false;
      text += written[i];
    }
  }
  return text;
}

void Lexer::skip_block() {
  const std::size_t from = static_cast<std::size_t>(current_.text.data() - text_.data());
  const std::size_t end = text_.find('}', from);
  if (end == std::string_view::npos) fail("'}' expected");
  line_ = current_.line + static_cast<std::uint32_t>(std::count(&text_[from], &text_[end], '\n'));
  position_ = end + 1;
  advance();
}

void Lexer::fail(const std::string& message, const Token& at) const {
  const std::size_t position = static_cast<std::size_t>(at.text.data() - text_.data());
  const std::size_t before = position == 0 ? std::string_view::npos : text_.rfind('\n', position - 1);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const std::size_t end = std::min(text_.find('\n', position), text_.size());
  const std::string_view whole = text_.substr(begin, end - begin);
  const std::size_t first = std::min(whole.find_first_not_of(" \t"), whole.size());
  throw SyntaxError("PTX line " + std::to_string(at.line) + ": " + message + ": \"" +
                    std::string(whole.substr(first, 200)) + "\"");
}

}  // namespace emulator::ptx

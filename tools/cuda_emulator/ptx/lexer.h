#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace emulator::ptx {

enum class TokenKind : std::uint8_t {
  end,
  name,    ///< "add", "%r1", "%tid.x", "$L__BB0_3", "_"
  dotted,  ///< ".reg", ".L2::128B"
  number,  ///< "12", "0x1F", "0f3F800000", "9.0"
  string,  ///< with its quotes
  mark,    ///< one character of punctuation
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text;
  std::uint32_t line = 1;

  bool is(char mark) const { return kind == TokenKind::mark && text[0] == mark; }
  bool is(TokenKind wanted, std::string_view word) const { return kind == wanted && text == word; }
};

/// The tokens of a PTX text (PTX ISA 4), one ahead. Comments are left out. Errors are thrown as SyntaxError.
class Lexer {
 public:
  explicit Lexer(std::string_view text);

  const Token& peek() const { return current_; }
  /// Returns the current token and moves on.
  Token next();
  bool accept(char mark);
  bool accept(TokenKind kind, std::string_view word);
  void expect(char mark);
  Token expect(TokenKind kind, std::string_view what);
  /// "generic", "_Z1kPi": a name, or an error that says what was wanted.
  std::string_view name(std::string_view what) { return expect(TokenKind::name, what).text; }
  /// A plain number without sign.
  std::uint64_t unsigned_number();

  /// The statement from the token `first` up to the current token: on one line, without comments.
  std::string text_since(const Token& first) const;
  /// Moves behind the next '}' of the text after the current token, without looking at the tokens between.
  void skip_block();

  [[noreturn]] void fail(const std::string& message) const { fail(message, current_); }
  [[noreturn]] void fail(const std::string& message, const Token& at) const;

 private:
  void skip_blanks();
  void advance();

  std::string_view text_;
  std::size_t position_ = 0;
  std::uint32_t line_ = 1;
  Token current_;
};

}  // namespace emulator::ptx

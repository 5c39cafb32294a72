#include "ptx/constants.h"

#include <bit>
#include <charconv>
#include <string>

#include "ptx/parser.h"

namespace emulator::ptx {
namespace {

constexpr int deepest = 100;  ///< parentheses and signs within one another

template <typename T, typename... Format>
bool read(std::string_view digits, T& value, Format... format) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, format...);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

Immediate negated(Immediate value) {
  if (value.floating == Type::none) return {0 - value.bits};
  return {value.bits ^ (value.floating == Type::f32 ? 0x80000000ull : 0x8000000000000000ull), value.floating};
}

/// How tightly the operator at the current token binds; 0 when there is none.
int precedence(const Token& token) {
  if (token.kind != TokenKind::mark) return 0;
  switch (token.text[0]) {
    case '|':
      return 1;
    case '^':
      return 2;
    case '&':
      return 3;
    case '<':
    case '>':
      return 4;
    case '+':
    case '-':
      return 5;
    case '*':
    case '/':
      return 6;
    default:
      return 0;
  }
}

class Expression {
 public:
  explicit Expression(Lexer& lexer) : lexer_(lexer) {}

  Immediate binary(int least) {
    Immediate left = unary();
    for (int level = precedence(lexer_.peek()); level >= least && level > 0;
         level = precedence(lexer_.peek())) {
      const Token sign = lexer_.next();
      if (level == 4) lexer_.expect(sign.text[0]);  // "<<" and ">>" are two marks
      const Immediate right = binary(level + 1);
      if (left.floating != Type::none || right.floating != Type::none) {
        lexer_.fail("an expression of floating point literals", sign);
      }
      left.bits = apply(sign, left.bits, right.bits);
    }
    return left;
  }

 private:
  Immediate unary() {
    if (++depth_ > deepest) lexer_.fail("an expression nested too deeply");
    const Immediate value = unary_inside();
    --depth_;
    return value;
  }

  Immediate unary_inside() {
    if (lexer_.accept('-')) return negated(unary());
    if (lexer_.accept('+')) return unary();
    if (lexer_.accept('~')) return {~integer().bits};
    if (lexer_.accept('!')) return {integer().bits == 0 ? 1u : 0u};
    if (lexer_.accept('(')) {
      const Immediate value = binary(1);
      lexer_.expect(')');
      return value;
    }
    if (lexer_.accept(TokenKind::name, "WARP_SZ")) return {32};
    const Token token = lexer_.expect(TokenKind::number, "a constant");
    try {
      return number(token.text);
    } catch (const SyntaxError& error) {
      lexer_.fail(error.what(), token);
    }
  }

  Immediate integer() {
    const Token first = lexer_.peek();
    const Immediate value = unary();
    if (value.floating != Type::none) lexer_.fail("an integer expected", first);
    return value;
  }

  std::uint64_t apply(const Token& sign, std::uint64_t a, std::uint64_t b) const {
    const auto is_a = static_cast<std::int64_t>(a), is_b = static_cast<std::int64_t>(b);
    switch (sign.text[0]) {
      case '|':
        return a | b;
      case '^':
        return a ^ b;
      case '&':
        return a & b;
      case '<':
        return b < 64 ? a << b : 0;
      case '>':
        return static_cast<std::uint64_t>(is_a >> (b < 64 ? b : 63));
      case '+':
        return a + b;
      case '-':
        return a - b;
      case '*':
        return a * b;
      default:
        if (is_b == 0) lexer_.fail("division by zero", sign);
        return is_b == -1 ? 0 - a : static_cast<std::uint64_t>(is_a / is_b);
    }
  }

  Lexer& lexer_;
  int depth_ = 0;
};

}  // namespace

Immediate number(std::string_view literal) {
  const auto prefixed = [&](char lower, char upper) {
    return literal.size() > 2 && literal[0] == '0' && (literal[1] == lower || literal[1] == upper);
  };
  const auto wrong = [&] { return SyntaxError("not a number: " + std::string(literal)); };
  std::uint64_t bits = 0;
  if (prefixed('f', 'F') || prefixed('d', 'D')) {
    const bool single = prefixed('f', 'F');
    if (literal.size() != (single ? 10 : 18) || !read(literal.substr(2), bits, 16)) throw wrong();
    return {bits, single ? Type::f32 : Type::f64};
  }
  if (!prefixed('x', 'X') && literal.find_first_of(".eE") != std::string_view::npos) {
    double value = 0;
    if (!read(literal, value)) throw wrong();
    return {std::bit_cast<std::uint64_t>(value), Type::f64};
  }
  std::string_view digits = literal;
  if (digits.ends_with('U')) digits.remove_suffix(1);
  int base = 10;
  if (prefixed('x', 'X') || prefixed('b', 'B')) {
    base = prefixed('x', 'X') ? 16 : 2;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  if (!read(digits, bits, base)) throw wrong();
  return {bits};
}

bool at_constant(const Lexer& lexer) {
  const Token& token = lexer.peek();
  if (token.kind == TokenKind::number || token.is(TokenKind::name, "WARP_SZ")) return true;
  return token.kind == TokenKind::mark &&
         std::string_view("-+~!(").find(token.text[0]) != std::string_view::npos;
}

Immediate constant(Lexer& lexer) { return Expression(lexer).binary(1); }

std::int64_t integer_constant(Lexer& lexer) {
  const Token first = lexer.peek();
  const Immediate value = constant(lexer);
  if (value.floating != Type::none) lexer.fail("an integer expected", first);
  return static_cast<std::int64_t>(value.bits);
}

}  // namespace emulator::ptx

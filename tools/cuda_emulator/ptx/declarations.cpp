#include "ptx/declarations.h"

#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "ptx/constants.h"

namespace emulator::ptx {
namespace {

constexpr std::uint64_t most_bytes = 1ull << 40;        ///< of one variable
constexpr std::uint64_t most_of_a_family = 1ull << 24;  ///< registers

std::uint64_t product(Lexer& lexer, std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > most_bytes)
    lexer.fail("a variable of too many bytes");
  return result;
}

std::uint32_t alignment(Lexer& lexer) {
  const Token at = lexer.peek();
  const std::uint64_t value = lexer.unsigned_number();
  if (!std::has_single_bit(value) || value > 1u << 20) lexer.fail("an alignment that is no power of two", at);
  return static_cast<std::uint32_t>(value);
}

/// What stands between the space directive and the names.
struct Prefix {
  Type type = Type::none;
  std::uint32_t elements = 1;   ///< 4 for .v4
  std::uint32_t alignment = 0;  ///< 0: not given
  bool managed = false;

  std::uint32_t bytes() const { return bytes_of(type) * elements; }
};

Prefix parse_prefix(Lexer& lexer) {
  Prefix prefix;
  while (lexer.peek().kind == TokenKind::dotted) {
    const Token token = lexer.next();
    const std::string_view word = token.text.substr(1);
    if (word == "align") {
      prefix.alignment = alignment(lexer);
    } else if (word == "attribute") {
      prefix.managed |= parse_attributes(lexer);
    } else if (word == "v2" || word == "v4" || word == "v8") {
      prefix.elements = static_cast<std::uint32_t>(word[1] - '0');
    } else if (
        word ==
        "ptr") {  // of a parameter; space and alignment are those of the memory that the pointer refers to
      const Space pointed = space_of(lexer.peek());
      if (pointed != Space::none && pointed != Space::reg && pointed != Space::param) lexer.next();
      if (lexer.accept(TokenKind::dotted, ".align")) alignment(lexer);
    } else if (type_named(word) != Type::none) {
      if (prefix.type != Type::none) lexer.fail("a second type", token);
      prefix.type = type_named(word);
    } else {
      lexer.fail("unknown directive " + std::string(token.text) + " in a declaration", token);
    }
  }
  if (prefix.type == Type::none) lexer.fail("a type expected");
  return prefix;
}

/// The extents "[2][3]"; 0 for "[]", which only the first may be.
std::vector<std::uint64_t> parse_extents(Lexer& lexer) {
  std::vector<std::uint64_t> extents;
  while (lexer.accept('[')) {
    if (lexer.accept(']')) {
      if (!extents.empty()) lexer.fail("only the first extent may be left out");
      extents.push_back(0);
      continue;
    }
    const std::int64_t extent = integer_constant(lexer);
    if (extent < 0) lexer.fail("a negative extent");
    extents.push_back(static_cast<std::uint64_t>(extent));
    lexer.expect(']');
  }
  return extents;
}

/// Fills Variable::initial and addresses (PTX ISA 5.4.4).
class Initialiser {
 public:
  Initialiser(Lexer& lexer, Variable& variable)
      : lexer_(lexer), variable_(variable), width_(bytes_of(variable.type)) {}

  /// The value or the braces at the current token, for the bytes from `offset` to `limit`; `extents` of the
  /// array there. Returns the bytes behind `offset` that have values.
  std::uint64_t parse(std::span<const std::uint64_t> extents, std::uint64_t offset, std::uint64_t limit) {
    if (!lexer_.accept('{')) {
      element(offset, limit);
      return width_;
    }
    std::uint64_t row = width_;
    for (std::size_t i = 1; i < extents.size(); ++i) row = product(lexer_, row, extents[i]);
    std::uint64_t filled = 0;
    if (lexer_.accept('}')) return 0;
    do {
      if (lexer_.peek().is('{')) {
        if (extents.size() < 2 || row == 0 || filled % row != 0)
          lexer_.fail("braces where a single value belongs");
        if (row > limit - offset - filled) lexer_.fail("more rows than the variable holds");
        parse(extents.subspan(1), offset + filled, offset + filled + row);
        filled += row;
      } else {
        element(offset + filled, limit);
        filled += width_;
      }
    } while (lexer_.accept(','));
    lexer_.expect('}');
    return filled;
  }

 private:
  void element(std::uint64_t offset, std::uint64_t limit) {
    if (offset + width_ > limit) lexer_.fail("more values than the variable holds");
    if (lexer_.peek().kind == TokenKind::name && !at_constant(lexer_)) return address(offset, 0);
    const Token first = lexer_.peek();
    const Immediate value = constant(lexer_);
    if (!lexer_.accept('(')) return store(offset, converted(value, first));
    // "0xFF00(symbol)": the bits of the address that the mask selects
    if (value.floating != Type::none || value.bits == 0) lexer_.fail("a mask expected", first);
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(value.bits));
    if (static_cast<std::uint32_t>(std::popcount(value.bits)) != 8 * width_ || shift % 8 != 0 ||
        static_cast<std::uint32_t>(std::bit_width(value.bits)) != shift + 8 * width_) {
      lexer_.fail("a mask that does not select as many bytes as the value has", first);
    }
    address(offset, shift);
    lexer_.expect(')');
  }

  /// "symbol", "symbol+4", "generic(symbol)+4".
  void address(std::uint64_t offset, std::uint32_t shift) {
    std::string_view symbol = lexer_.name("a symbol");
    if (symbol == "generic" && lexer_.accept('(')) {
      symbol = lexer_.name("a symbol");
      lexer_.expect(')');
    }
    std::int64_t addend = 0;
    if (lexer_.accept('+')) {
      addend = integer_constant(lexer_);
    } else if (lexer_.peek().is('-')) {
      addend = integer_constant(lexer_);
    }
    variable_.addresses.push_back({offset, width_, std::string(symbol), addend, shift});
    store(offset, 0);
  }

  std::uint64_t converted(const Immediate& value, const Token& first) const {
    const bool wide = value.floating == Type::f64;
    if (variable_.type == Type::f32 && (wide || value.floating == Type::none)) {
      const double number = wide ? std::bit_cast<double>(value.bits)
                                 : static_cast<double>(static_cast<std::int64_t>(value.bits));
      return std::bit_cast<std::uint32_t>(static_cast<float>(number));
    }
    if (variable_.type == Type::f64 && !wide) {
      const double number = value.floating == Type::f32
                                ? std::bit_cast<float>(static_cast<std::uint32_t>(value.bits))
                                : static_cast<double>(static_cast<std::int64_t>(value.bits));
      return std::bit_cast<std::uint64_t>(number);
    }
    if (value.floating != Type::none && bytes_of(value.floating) != width_) {
      lexer_.fail("a floating point value for a variable of another size", first);
    }
    return value.bits;
  }

  void store(std::uint64_t offset, std::uint64_t bits) {
    if (variable_.initial.size() < offset + width_) variable_.initial.resize(offset + width_);
    for (std::uint32_t i = 0; i < width_; ++i) {
      const std::uint64_t extended = i < 8 ? bits >> (8 * i) : 0;
      variable_.initial[offset + i] = static_cast<std::uint8_t>(extended);
    }
  }

  Lexer& lexer_;
  Variable& variable_;
  std::uint32_t width_;
};

Parameter parse_parameter(Lexer& lexer) {
  const Token space = lexer.next();
  Parameter parameter{};
  parameter.in_register = space.is(TokenKind::dotted, ".reg");
  if (!parameter.in_register && !space.is(TokenKind::dotted, ".param")) {
    lexer.fail(".param or .reg expected", space);
  }
  const Prefix prefix = parse_prefix(lexer);
  parameter.type = prefix.type;
  parameter.alignment = prefix.alignment != 0 ? prefix.alignment : std::max(prefix.bytes(), 1u);
  const std::string_view name = lexer.name("a parameter's name");
  if (name != "_") parameter.name = name;
  std::uint64_t bytes = prefix.bytes();
  for (const std::uint64_t extent : parse_extents(lexer)) bytes = product(lexer, bytes, extent);
  if (bytes > UINT32_MAX) lexer.fail("a parameter of too many bytes");
  parameter.bytes = static_cast<std::uint32_t>(bytes);
  return parameter;
}

}  // namespace

Space space_of(const Token& token) {
  if (token.kind != TokenKind::dotted) return Space::none;
  const std::string_view word = token.text.substr(1);
  if (word == "reg") return Space::reg;
  if (word == "global") return Space::global;
  if (word == "shared") return Space::shared;
  if (word == "local") return Space::local;
  if (word == "const") return Space::constant;
  if (word == "param") return Space::param;
  return Space::none;
}

bool parse_attributes(Lexer& lexer) {
  bool managed = false;
  std::size_t depth = 0;
  if (!lexer.peek().is('(')) lexer.fail("'(' expected");
  do {
    const Token token = lexer.next();
    if (token.kind == TokenKind::end) lexer.fail("')' expected");
    if (token.is('(')) ++depth;
    if (token.is(')')) --depth;
    managed |= token.is(TokenKind::dotted, ".managed");
  } while (depth > 0);
  return managed;
}

std::vector<DeclaredVariable> parse_variables(Lexer& lexer, Space space) {
  const Prefix prefix = parse_prefix(lexer);
  if (prefix.bytes() == 0) lexer.fail("a type of memory expected");
  std::vector<DeclaredVariable> variables;
  do {
    auto& [name, variable] = variables.emplace_back();
    name = lexer.name("a variable's name");
    variable.name = name;
    variable.space = space;
    variable.type = prefix.type;
    variable.alignment = prefix.alignment != 0 ? prefix.alignment : prefix.bytes();
    variable.managed = prefix.managed;
    std::vector<std::uint64_t> extents = parse_extents(lexer);
    variable.bytes = prefix.bytes();
    for (const std::uint64_t extent : extents) variable.bytes = product(lexer, variable.bytes, extent);
    if (lexer.accept('=')) {
      const bool open = !extents.empty() && extents.front() == 0;
      if (prefix.elements > 1) extents.push_back(prefix.elements);
      const std::uint64_t filled =
          Initialiser(lexer, variable).parse(extents, 0, open ? most_bytes : variable.bytes);
      if (open) variable.bytes = filled;
    }
  } while (lexer.accept(','));
  lexer.expect(';');
  return variables;
}

std::vector<RegisterNames> parse_registers(Lexer& lexer, Type& type) {
  const Prefix prefix = parse_prefix(lexer);
  if (prefix.elements > 1) lexer.fail("a vector of registers");
  type = prefix.type;
  std::vector<RegisterNames> registers;
  do {
    RegisterNames names{lexer.name("a register's name"), 1, false};
    if (lexer.accept('<')) {
      const std::uint64_t count = lexer.unsigned_number();
      if (count > most_of_a_family) lexer.fail("too many registers");
      names.count = static_cast<std::uint32_t>(count);
      names.family = true;
      lexer.expect('>');
    }
    registers.push_back(names);
  } while (lexer.accept(','));
  lexer.expect(';');
  return registers;
}

std::vector<Parameter> parse_parameters(Lexer& lexer) {
  std::vector<Parameter> parameters;
  if (!lexer.accept('(') || lexer.accept(')')) return parameters;
  do {
    parameters.push_back(parse_parameter(lexer));
  } while (lexer.accept(','));
  lexer.expect(')');
  return parameters;
}

}  // namespace emulator::ptx

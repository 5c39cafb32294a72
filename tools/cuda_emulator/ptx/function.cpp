#include "ptx/function.h"

#include <optional>
#include <string>
#include <utility>

#include "ptx/constants.h"
#include "ptx/declarations.h"
#include "ptx/scopes.h"

namespace emulator::ptx {
namespace {

constexpr std::size_t most_registers = 1u << 24;  ///< of one function

class FunctionParser {
 public:
  FunctionParser(Lexer& lexer, SourceLines& lines, const std::unordered_set<std::string_view>& module_names,
                 Function& function)
      : lexer_(lexer), lines_(lines), function_(function), scopes_(module_names) {}

  std::string_view parse() {
    const std::string_view name = header();
    if (lexer_.accept(';')) {
      function_.external = true;
      return name;
    }
    declare_parameters(function_.results);
    declare_parameters(function_.parameters);
    lexer_.expect('{');
    const std::size_t outside = scopes_.depth();
    scopes_.open();
    while (scopes_.depth() > outside) item();
    close_scope();
    for (const Scopes::LabelWanted& wanted : scopes_.unresolved()) {
      lexer_.fail("label " + std::string(wanted.name) + " of line " + std::to_string(wanted.line) +
                  " is not declared in function " + function_.name);
    }
    lines_.forget();
    return name;
  }

 private:
  std::string_view header() {
    if (lexer_.accept(TokenKind::dotted, ".attribute")) parse_attributes(lexer_);
    function_.results = parse_parameters(lexer_);
    const std::string_view name = lexer_.name("a function's name");
    function_.name = name;
    function_.parameters = parse_parameters(lexer_);
    while (lexer_.peek().kind == TokenKind::dotted) directive_of_header();
    return name;
  }

  std::uint32_t number32() { return static_cast<std::uint32_t>(lexer_.unsigned_number()); }

  Dim3 extents() {
    Dim3 extents{number32()};
    if (lexer_.accept(',')) extents.y = number32();
    if (lexer_.accept(',')) extents.z = number32();
    return extents;
  }

  void directive_of_header() {
    const Token token = lexer_.next();
    const std::string_view word = token.text;
    if (word == ".maxntid") {
      function_.max_threads = extents();
    } else if (word == ".reqntid") {
      function_.required_threads = extents();
    } else if (word == ".minnctapersm") {
      function_.min_blocks = number32();
    } else if (word == ".maxnctapersm") {
      number32();  // replaced by .minnctapersm in PTX 2.0
    } else if (word == ".maxnreg") {
      function_.max_registers = number32();
    } else if (word == ".reqnctapercluster") {
      function_.required_cluster = extents();
    } else if (word == ".explicitcluster") {
      function_.explicit_cluster = true;
    } else if (word == ".maxclusterrank") {
      function_.max_cluster_rank = number32();
    } else if (word == ".noreturn") {
      function_.no_return = true;
    } else if (word == ".abi_preserve" || word == ".abi_preserve_control") {
      number32();  // registers that a callee keeps: means nothing where every frame has registers of its own
    } else if (word == ".pragma") {
      pragma();
    } else if (word == ".loc") {
      lines_.location(lexer_);
    } else {
      lexer_.fail("unknown directive " + std::string(word) + " of a function", token);
    }
  }

  void declare_parameters(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) {
      if (parameter.name.empty()) continue;
      const std::string_view name = parameter.name;
      const auto index = static_cast<std::uint32_t>(function_.registers.size());
      if (parameter.in_register) function_.registers.push_back({parameter.name, parameter.type});
      const bool added =
          parameter.in_register ? scopes_.declare_register(name, index) : scopes_.declare_symbol(name);
      if (!added) lexer_.fail("parameter " + parameter.name + " is declared twice");
    }
  }

  void close_scope() {
    scopes_.close([&](const Scopes::LabelWanted& wanted, std::uint32_t label) {
      if (wanted.listed != nullptr) {
        *wanted.listed = function_.labels[label];
      } else {
        function_.statements[wanted.statement].operands[wanted.operand] = LabelUse{label};
      }
    });
  }

  /// One thing of the body: a brace, a directive, a label or an instruction.
  void item() {
    const Token& token = lexer_.peek();
    if (token.kind == TokenKind::name) {
      const Token name = lexer_.next();
      if (lexer_.accept(':')) return label(name);
      return instruction(name, name, {});
    }
    if (token.kind == TokenKind::dotted) return directive();
    if (lexer_.accept(';')) return;
    if (lexer_.accept('{')) return scopes_.open();
    if (lexer_.accept('}')) return close_scope();
    if (token.is('@')) {
      const Token first = lexer_.next();
      const bool negated = lexer_.accept('!');
      const Token name = lexer_.expect(TokenKind::name, "a predicate register");
      const auto index = scopes_.find_register(name.text);
      if (!index) lexer_.fail("the guard is not a register", name);
      return instruction(first, lexer_.expect(TokenKind::name, "an instruction"),
                         RegisterUse{*index, negated});
    }
    lexer_.fail("an instruction expected");
  }

  void label(const Token& name) {
    const Token& token = lexer_.peek();
    if (token.kind == TokenKind::dotted &&
        (token.text == ".callprototype" || token.text == ".branchtargets" || token.text == ".calltargets")) {
      return list(name, lexer_.next());
    }
    if (!scopes_.declare_label(name.text, static_cast<std::uint32_t>(function_.labels.size())))
      declared_twice(name);
    function_.labels.push_back(scopes_.unique(name.text));
    function_.label_statement.push_back(static_cast<std::uint32_t>(function_.statements.size()));
  }

  /// "name: .branchtargets L1, L2;" and its like.
  void list(const Token& name, const Token& kind) {
    if (!scopes_.declare_symbol(name.text)) declared_twice(name);
    const std::string& unique = scopes_.unique(name.text);
    if (kind.text == ".callprototype") {
      function_.prototypes_results[unique] = parse_parameters(lexer_);
      lexer_.name("'_'");
      function_.prototypes[unique] = parse_parameters(lexer_);
      while (lexer_.peek().kind == TokenKind::dotted) {
        const Token attribute = lexer_.next();
        if (attribute.text == ".abi_preserve" || attribute.text == ".abi_preserve_control") {
          number32();
        } else if (attribute.text != ".noreturn") {
          lexer_.fail("unknown directive " + std::string(attribute.text) + " of a prototype", attribute);
        }
      }
    } else {
      const bool branches = kind.text == ".branchtargets";
      std::vector<Token> targets;
      do {
        targets.push_back(lexer_.expect(TokenKind::name, "a target"));
      } while (lexer_.accept(','));
      std::vector<std::string>& names =
          (branches ? function_.branch_targets : function_.call_targets)[unique];
      names.resize(targets.size());
      for (std::size_t i = 0; i < targets.size(); ++i) {
        if (branches) {
          scopes_.want_label({targets[i].text, targets[i].line, 0, 0, &names[i]});
        } else {
          names[i] = targets[i].text;
        }
      }
    }
    lexer_.expect(';');
  }

  void directive() {
    const Token token = lexer_.next();
    if (token.text == ".loc") return lines_.location(lexer_);
    if (token.text == ".file") return lines_.file(lexer_);
    if (token.text == ".pragma") return pragma();
    const Space space = space_of(token);
    if (space == Space::reg) return registers();
    if (space == Space::none || space == Space::global || space == Space::constant) {
      lexer_.fail("unknown directive " + std::string(token.text) + " in a function", token);
    }
    const Token first = lexer_.peek();
    for (auto& [name, variable] : parse_variables(lexer_, space)) {
      if (!scopes_.declare_symbol(name))
        lexer_.fail(variable.name + " is declared twice in one scope", first);
      variable.name = scopes_.unique(name);
      function_.variables.push_back(std::move(variable));
    }
  }

  void registers() {
    const Token first = lexer_.peek();
    Type type = Type::none;
    for (const RegisterNames& names : parse_registers(lexer_, type)) {
      const auto index = static_cast<std::uint32_t>(function_.registers.size());
      if (index + names.count > most_registers) lexer_.fail("too many registers", first);
      const bool added = names.family ? scopes_.declare_family(names.name, index, names.count)
                                      : scopes_.declare_register(names.name, index);
      if (!added) lexer_.fail("register " + std::string(names.name) + " is declared twice", first);
      for (std::uint32_t i = 0; i < names.count; ++i) {
        std::string name(names.name);
        if (names.family) name += std::to_string(i);
        function_.registers.push_back({std::move(name), type});
      }
    }
  }

  void pragma() {
    constexpr std::string_view mask = "used_bytes_mask ";
    do {
      const Token token = lexer_.expect(TokenKind::string, "a string");
      const std::string_view text = token.text.substr(1, token.text.size() - 2);
      if (!text.starts_with(mask)) continue;
      Lexer inside(text.substr(mask.size()));
      used_bytes_mask_ = static_cast<std::uint32_t>(inside.unsigned_number());
    } while (lexer_.accept(','));
    lexer_.expect(';');
  }

  void instruction(const Token& first, const Token& opcode, std::optional<RegisterUse> guard) {
    Statement statement;
    statement.opcode = opcode.text;
    statement.guard = guard;
    statement.place = lines_.place(opcode.line);
    statement.used_bytes_mask = std::exchange(used_bytes_mask_, std::nullopt);
    modifiers_.clear();
    while (lexer_.peek().kind == TokenKind::dotted) modifiers_.push_back(lexer_.next().text.substr(1));
    statement.modifiers.assign(modifiers_.begin(), modifiers_.end());

    operands_.clear();
    if (statement.opcode == "call") {
      call();
    } else if (!lexer_.peek().is(';')) {
      const bool branch = statement.opcode == "bra";
      do {
        operands_.push_back(branch ? branch_target() : operand());
      } while (lexer_.accept(','));
    }
    if (!lexer_.peek().is(';')) lexer_.fail("',' or ';' expected");
    statement.text = lexer_.text_since(first);
    lexer_.expect(';');
    statement.operands.assign(std::make_move_iterator(operands_.begin()),
                              std::make_move_iterator(operands_.end()));
    function_.statements.push_back(std::move(statement));
  }

  Operand branch_target() {
    const Token name = lexer_.expect(TokenKind::name, "a label");
    scopes_.want_label({name.text, name.line, function_.statements.size(), operands_.size()});
    return LabelUse{0};
  }

  /// "(results), callee, (arguments), prototype": all but the callee may be missing (PTX ISA 9.7.12.5).
  void call() {
    List results;
    if (lexer_.peek().is('(')) {
      results = list_of_scalars();
      lexer_.expect(',');
    }
    operands_.emplace_back(std::move(results));
    operands_.emplace_back(scalar());
    List arguments;
    std::optional<Scalar> prototype;
    if (lexer_.accept(',')) {
      if (lexer_.peek().is('(')) {
        arguments = list_of_scalars();
        if (lexer_.accept(',')) prototype = scalar();
      } else {
        prototype = scalar();
      }
    }
    operands_.emplace_back(std::move(arguments));
    if (prototype) operands_.emplace_back(std::move(*prototype));
  }

  List list_of_scalars() {
    List list;
    lexer_.expect('(');
    if (lexer_.accept(')')) return list;
    do {
      list.elements.push_back(scalar());
    } while (lexer_.accept(','));
    lexer_.expect(')');
    return list;
  }

  std::vector<Scalar> elements() {
    std::vector<Scalar> elements;
    lexer_.expect('{');
    do {
      elements.push_back(scalar());
    } while (lexer_.accept(','));
    lexer_.expect('}');
    return elements;
  }

  Operand operand() {
    if (lexer_.peek().is('[')) return address();
    if (lexer_.peek().is('{')) return Vector{elements()};
    const bool negative = minus_of_register();
    Scalar first = scalar();
    if (lexer_.accept('|')) return Pair{std::move(first), scalar()};
    const bool selected = lexer_.peek().kind == TokenKind::dotted;
    if (!negative && !selected) return first;
    return Part{std::move(first), std::string(selected ? lexer_.next().text.substr(1) : ""), negative};
  }

  /// Takes the '-' of "-%r1"; that of a number stays.
  bool minus_of_register() {
    if (!lexer_.peek().is('-')) return false;
    Lexer ahead = lexer_;
    ahead.next();
    if (ahead.peek().kind != TokenKind::name || !scopes_.find_register(ahead.peek().text)) return false;
    lexer_ = ahead;
    return true;
  }

  Address address() {
    Address address;
    lexer_.expect('[');
    if (at_constant(lexer_)) {
      address.base = constant(lexer_);
    } else {
      Scalar base = named(lexer_.expect(TokenKind::name, "a register, a symbol or a number"), false);
      address.offset = offset();
      address.base = std::move(base);
    }
    if (lexer_.accept(',')) {
      if (lexer_.peek().is('{')) {
        address.coordinates = elements();
      } else {
        address.coordinates.push_back(scalar());
      }
    }
    lexer_.expect(']');
    return address;
  }

  /// "+8", "+-4", "-4", or nothing.
  std::int64_t offset() {
    if (lexer_.accept('+')) return integer_constant(lexer_);
    return lexer_.peek().is('-') ? integer_constant(lexer_) : 0;
  }

  Scalar scalar() {
    if (lexer_.peek().is('!')) {
      Lexer ahead = lexer_;
      const Token sign = ahead.next();
      const auto index = scopes_.find_register(ahead.peek().text);
      if (index) {
        ahead.next();
        lexer_ = ahead;
        return RegisterUse{*index, true};
      }
      if (ahead.peek().kind == TokenKind::name) lexer_.fail("'!' stands before what is not a register", sign);
    }
    if (at_constant(lexer_)) return constant(lexer_);
    return named(lexer_.expect(TokenKind::name, "an operand"), true);
  }

  /// What a name stands for; a symbol takes the offset behind it when `with_offset` is set.
  Scalar named(const Token& name, bool with_offset) {
    if (const auto index = scopes_.find_register(name.text)) return RegisterUse{*index};
    if (name.text == "_") return Sink{};
    if (name.text[0] == '%') return SpecialUse{std::string(name.text)};
    const Scopes::Entry* entry = scopes_.find(name.text);
    const bool renamed = entry != nullptr && entry->kind == Scopes::Kind::symbol;
    SymbolUse symbol{renamed ? entry->name : std::string(name.text)};
    if (with_offset) symbol.offset = offset();
    return symbol;
  }

  [[noreturn]] void declared_twice(const Token& name) const {
    lexer_.fail(std::string(name.text) + " is declared twice in one scope", name);
  }

  Lexer& lexer_;
  SourceLines& lines_;
  Function& function_;
  Scopes scopes_;
  std::optional<std::uint32_t> used_bytes_mask_;
  std::vector<std::string_view> modifiers_;  ///< of the statement at hand, kept for their storage
  std::vector<Operand> operands_;            ///< likewise
};

}  // namespace

std::string_view parse_function(Lexer& lexer, SourceLines& lines,
                                const std::unordered_set<std::string_view>& module_names,
                                Function& function) {
  return FunctionParser(lexer, lines, module_names, function).parse();
}

}  // namespace emulator::ptx

#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/quote.h"
#include "data/chat/jinja/lexer.h"
#include "data/chat/jinja/tree.h"

namespace nemocube::jinja {

/// Recursive descent in the order of Jinja's own parser, whose precedences differ from Python's in places:
/// `not` binds looser than comparisons, `-x | f` filters -x, `~` binds tighter than `+`.
class Parser {
 public:
  explicit Parser(const Source& source) : source_(source), tokens_(tokenize(source)) {}
  Tree run();

 private:
  using Kind = Expression::Kind;
  using Names = std::initializer_list<std::string_view>;

  /// A level of nesting, for as long as it lives.
  class Level {
   public:
    explicit Level(Parser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  // The stream of tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_symbol(std::string_view symbol);
  bool take_name(std::string_view name);
  void want_symbol(std::string_view symbol);
  void want_name(std::string_view name);
  const Token& want(TokenKind kind, std::string_view wish);
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... wish) const {
    source_.fail(current().offset, "want ", wish..., ", got ", shown(current()));
  }

  // Expressions, loosest binding first.
  ExpressionPointer expression();
  ExpressionPointer expression(bool with_condition) { return with_condition ? expression() : disjunction(); }
  ExpressionPointer conditional_tail(ExpressionPointer first);
  ExpressionPointer disjunction();
  ExpressionPointer conjunction();
  ExpressionPointer negation();
  ExpressionPointer comparison();
  ExpressionPointer sum();
  ExpressionPointer join();
  ExpressionPointer product();
  ExpressionPointer power();
  ExpressionPointer unary(bool with_filters = true);
  ExpressionPointer postfix(ExpressionPointer node);
  ExpressionPointer filters_and_tests(ExpressionPointer node);
  ExpressionPointer primary(bool attribute_targets = false);
  ExpressionPointer constant_or_name(bool attribute_targets);
  ExpressionPointer texts();
  ExpressionPointer list();
  ExpressionPointer mapping();
  ExpressionPointer attribute(ExpressionPointer node);
  ExpressionPointer subscript(ExpressionPointer node);
  ExpressionPointer slice(ExpressionPointer node, std::size_t offset, ExpressionPointer start);
  ExpressionPointer call(ExpressionPointer node);
  ExpressionPointer filter(ExpressionPointer node, bool begins_inline = false);
  ExpressionPointer test(ExpressionPointer node);
  CallArguments call_arguments();
  void call_argument(CallArguments& arguments, const Token& open);
  std::string dotted_name();

  /// How a list with commas is read. `parts` is expressions, or targets where `targets` is set.
  struct TupleForm {
    bool targets = false, attribute_targets = false, with_condition = true, in_parentheses = false;
    std::string_view end_name{};  // a name that ends the tuple, such as "in"
  };
  ExpressionPointer tuple(const TupleForm& form);
  bool tuple_ends(std::string_view end_name) const;

  ExpressionPointer make(Kind kind, std::size_t offset) const;
  ExpressionPointer make(Kind kind, std::size_t offset, ExpressionPointer first,
                         ExpressionPointer second = nullptr) const;
  void adopt(Expression& parent, ExpressionPointer part) const;
  void grow(Expression& parent, const Expression* part) const;
  void take_arguments(Expression& parent);
  void check_count(std::size_t names) const;

  // Statements.
  Body body(Names ends);
  Body statements(Names ends);
  std::unique_ptr<Statement> output();
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> make(Statement::Kind kind, std::size_t offset) const;
  std::unique_ptr<Statement> for_statement(std::size_t offset);
  std::unique_ptr<Statement> if_statement(std::size_t offset);
  std::unique_ptr<Statement> set_statement(std::size_t offset);
  std::unique_ptr<Statement> macro_statement(std::size_t offset);
  std::unique_ptr<Statement> call_statement(std::size_t offset);
  std::unique_ptr<Statement> filter_statement(std::size_t offset);
  std::unique_ptr<Statement> with_statement(std::size_t offset);
  std::unique_ptr<Statement> print_statement(std::size_t offset);
  std::unique_ptr<Statement> generation_statement(std::size_t offset);
  void signature(Macro& macro);
  ExpressionPointer target(std::string_view end_name, bool attribute_targets);
  void check_target(const Expression& target) const;

  const Source& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool has_generation_ = false;
  std::vector<std::string> open_;  // statements that want an end, for messages
};

}  // namespace nemocube::jinja

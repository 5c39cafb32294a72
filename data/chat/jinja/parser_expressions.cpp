#include <algorithm>
#include <optional>

#include "data/chat/jinja/parser_class.h"

namespace nemocube::jinja {

namespace {

constexpr int max_nesting = 100;         // levels of brackets and statements
constexpr std::size_t max_names = 1000;  // of the parameters of a macro, or of the arguments of a call
constexpr int max_height = 200;  // of an expression: a + b + c... is as high as it has terms, as in Python

std::optional<Comparison> comparison_of(const Token& token) {
  if (token.kind != TokenKind::symbol) return std::nullopt;
  if (token.text == "==") return Comparison::equal;
  if (token.text == "!=") return Comparison::unequal;
  if (token.text == "<") return Comparison::less;
  if (token.text == "<=") return Comparison::less_or_equal;
  if (token.text == ">") return Comparison::greater;
  if (token.text == ">=") return Comparison::greater_or_equal;
  return std::nullopt;
}

}  // namespace

Parser::Level::Level(Parser& parser) : parser_(parser) {
  if (++parser_.depth_ > max_nesting)
    parser_.source_.fail(parser_.current().offset, "want at most ", max_nesting,
                         " levels of brackets and statements inside each other, got more");
}

bool Parser::take_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  take();
  return true;
}

bool Parser::take_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::want_symbol(std::string_view symbol) {
  if (!take_symbol(symbol)) refuse(symbol);
}

void Parser::want_name(std::string_view name) {
  if (!take_name(name)) refuse(name);
}

const Token& Parser::want(TokenKind kind, std::string_view wish) {
  if (!current().is(kind)) refuse(wish);
  return take();
}

ExpressionPointer Parser::make(Kind kind, std::size_t offset) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->offset = offset;
  return node;
}

ExpressionPointer Parser::make(Kind kind, std::size_t offset, ExpressionPointer first,
                               ExpressionPointer second) const {
  auto node = make(kind, offset);
  adopt(*node, std::move(first));
  if (second) adopt(*node, std::move(second));
  return node;
}

void Parser::grow(Expression& parent, const Expression* part) const {
  if (!part) return;
  parent.height = std::max(parent.height, part->height + 1);
  if (parent.height > max_height)
    source_.fail(part->offset, "want at most ", max_height, " operations inside each other, got more");
}

void Parser::adopt(Expression& parent, ExpressionPointer part) const {
  grow(parent, part.get());
  parent.parts.push_back(std::move(part));
}

ExpressionPointer Parser::expression() {
  const Level level(*this);
  return conditional_tail(disjunction());
}

ExpressionPointer Parser::conditional_tail(ExpressionPointer first) {
  while (current().is_name("if")) {
    const std::size_t offset = take().offset;
    auto node = make(Kind::conditional, offset, disjunction(), std::move(first));
    adopt(*node, take_name("else") ? expression() : nullptr);
    first = std::move(node);
  }
  return first;
}

ExpressionPointer Parser::disjunction() {
  auto left = conjunction();
  while (current().is_name("or")) {
    const std::size_t offset = take().offset;
    left = make(Kind::disjunction, offset, std::move(left), conjunction());
  }
  return left;
}

ExpressionPointer Parser::conjunction() {
  auto left = negation();
  while (current().is_name("and")) {
    const std::size_t offset = take().offset;
    left = make(Kind::conjunction, offset, std::move(left), negation());
  }
  return left;
}

ExpressionPointer Parser::negation() {
  if (!current().is_name("not")) return comparison();
  const Level level(*this);
  const std::size_t offset = take().offset;
  return make(Kind::negation, offset, negation());
}

ExpressionPointer Parser::comparison() {
  auto first = sum();
  ExpressionPointer chain;
  while (true) {
    const std::size_t offset = current().offset;
    auto op = comparison_of(current());
    if (op) {
      take();
    } else if (take_name("in")) {
      op = Comparison::in;
    } else if (current().is_name("not") && following().is_name("in")) {
      take();
      take();
      op = Comparison::not_in;
    } else {
      break;
    }
    if (!chain) chain = make(Kind::comparison, offset, std::move(first));
    chain->comparisons.push_back(*op);
    adopt(*chain, sum());
  }
  return chain ? std::move(chain) : std::move(first);
}

ExpressionPointer Parser::sum() {
  auto left = join();
  while (current().is_symbol("+") || current().is_symbol("-")) {
    const Token& symbol = take();
    auto node = make(Kind::arithmetic, symbol.offset, std::move(left), join());
    node->op = symbol.text == "+" ? Operator::add : Operator::subtract;
    left = std::move(node);
  }
  return left;
}

ExpressionPointer Parser::join() {
  auto first = product();
  if (!current().is_symbol("~")) return first;
  auto node = make(Kind::join, current().offset, std::move(first));
  while (take_symbol("~")) adopt(*node, product());
  return node;
}

ExpressionPointer Parser::product() {
  auto left = power();
  while (current().is_symbol("*") || current().is_symbol("/") || current().is_symbol("//") ||
         current().is_symbol("%")) {
    const Token& symbol = take();
    auto node = make(Kind::arithmetic, symbol.offset, std::move(left), power());
    node->op = symbol.text == "*"   ? Operator::multiply
               : symbol.text == "/" ? Operator::divide
               : symbol.text == "%" ? Operator::modulo
                                    : Operator::floor_divide;
    left = std::move(node);
  }
  return left;
}

ExpressionPointer Parser::power() {
  auto left = unary();
  while (current().is_symbol("**")) {
    const std::size_t offset = take().offset;
    left = make(Kind::arithmetic, offset, std::move(left), unary());
    left->op = Operator::power;
  }
  return left;
}

ExpressionPointer Parser::unary(bool with_filters) {
  ExpressionPointer node;
  if (current().is_symbol("-") || current().is_symbol("+")) {
    const Level level(*this);
    const Token& sign = take();
    node = make(sign.text == "-" ? Kind::negative : Kind::positive, sign.offset, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPointer Parser::postfix(ExpressionPointer node) {
  while (true) {
    if (current().is_symbol("."))
      node = attribute(std::move(node));
    else if (current().is_symbol("["))
      node = subscript(std::move(node));
    else if (current().is_symbol("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExpressionPointer Parser::filters_and_tests(ExpressionPointer node) {
  while (true) {
    if (current().is_symbol("|"))
      node = filter(std::move(node));
    else if (current().is_name("is"))
      node = test(std::move(node));
    else if (current().is_symbol("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExpressionPointer Parser::primary(bool attribute_targets) {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::name:
      return constant_or_name(attribute_targets);
    case TokenKind::text:
      return texts();
    case TokenKind::integer:
    case TokenKind::real: {
      auto node = make(Kind::constant, token.offset);
      node->value = take().number;
      return node;
    }
    default:
      break;
  }
  if (token.is_symbol("[")) return list();
  if (token.is_symbol("{")) return mapping();
  if (!token.is_symbol("(")) refuse("an expression");
  const Level level(*this);
  take();
  TupleForm form;
  form.in_parentheses = true;
  auto node = tuple(form);
  want_symbol(")");
  return node;
}

ExpressionPointer Parser::constant_or_name(bool attribute_targets) {
  const Token& token = take();
  auto node = make(Kind::constant, token.offset);
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->value = name == "true" || name == "True";
  } else if (name == "none" || name == "None") {
    node->value = Value();
  } else {
    node->kind = Kind::name;
    node->name = name;
    if (attribute_targets && take_symbol(".")) {
      node->kind = Kind::attribute_target;
      node->attribute = want(TokenKind::name, "the name of an attribute").text;
    }
  }
  return node;
}

ExpressionPointer Parser::texts() {
  auto node = make(Kind::constant, current().offset);
  std::string text;
  while (current().is(TokenKind::text)) text += take().text;
  node->value = Value(std::move(text));
  return node;
}

bool Parser::tuple_ends(std::string_view end_name) const {
  const Token& token = current();
  return token.is(TokenKind::output_end) || token.is(TokenKind::statement_end) || token.is_symbol(")") ||
         (!end_name.empty() && token.is_name(end_name));
}

ExpressionPointer Parser::tuple(const TupleForm& form) {
  auto node = make(Kind::tuple, current().offset);
  bool comma = false;
  while (true) {
    if (!node->parts.empty()) want_symbol(",");
    if (tuple_ends(form.end_name)) break;
    adopt(*node, form.targets ? primary(form.attribute_targets) : expression(form.with_condition));
    if (!current().is_symbol(",")) break;
    comma = true;
  }
  if (comma) return node;
  if (!node->parts.empty()) return std::move(node->parts.front());
  if (!form.in_parentheses) refuse("an expression");
  return node;
}

ExpressionPointer Parser::list() {
  const Level level(*this);
  auto node = make(Kind::list, take().offset);
  while (!current().is_symbol("]")) {
    if (!node->parts.empty()) want_symbol(",");
    if (current().is_symbol("]")) break;
    adopt(*node, expression());
  }
  want_symbol("]");
  return node;
}

ExpressionPointer Parser::mapping() {
  const Level level(*this);
  auto node = make(Kind::mapping, take().offset);
  while (!current().is_symbol("}")) {
    if (!node->parts.empty()) want_symbol(",");
    if (current().is_symbol("}")) break;
    adopt(*node, expression());
    want_symbol(":");
    adopt(*node, expression());
  }
  want_symbol("}");
  return node;
}

ExpressionPointer Parser::attribute(ExpressionPointer node) {
  const std::size_t offset = take().offset;
  if (current().is(TokenKind::integer)) {
    auto index = make(Kind::constant, current().offset);
    index->value = take().number;
    return make(Kind::item, offset, std::move(node), std::move(index));
  }
  auto result = make(Kind::attribute, offset, std::move(node));
  result->name = want(TokenKind::name, "a name or a number behind the point").text;
  return result;
}

ExpressionPointer Parser::subscript(ExpressionPointer node) {
  const Level level(*this);
  const std::size_t offset = take().offset;
  std::vector<ExpressionPointer> indices;
  bool commas = false;
  while (!current().is_symbol("]")) {
    if (!indices.empty()) {
      want_symbol(",");
      commas = true;
    }
    ExpressionPointer start = current().is_symbol(":") ? nullptr : expression();
    if (current().is_symbol(":")) {
      if (commas) refuse("], since slices of several dimensions are not in this build");
      return slice(std::move(node), offset, std::move(start));
    }
    indices.push_back(std::move(start));
  }
  want_symbol("]");
  if (indices.size() == 1) return make(Kind::item, offset, std::move(node), std::move(indices.front()));
  auto key = make(Kind::tuple, offset);
  for (auto& index : indices) adopt(*key, std::move(index));
  return make(Kind::item, offset, std::move(node), std::move(key));
}

ExpressionPointer Parser::slice(ExpressionPointer node, std::size_t offset, ExpressionPointer start) {
  auto result = make(Kind::slice, offset, std::move(node));
  adopt(*result, std::move(start));
  take();
  const auto ends = [this] { return current().is_symbol(":") || current().is_symbol("]"); };
  adopt(*result, ends() ? nullptr : expression());
  adopt(*result, take_symbol(":") && !ends() ? expression() : nullptr);
  want_symbol("]");
  return result;
}

/// Each name is compared with those before it.
void Parser::check_count(std::size_t names) const {
  if (names >= max_names)
    source_.fail(current().offset, "want at most ", max_names, " names in these brackets");
}

void Parser::call_argument(CallArguments& arguments, const Token& open) {
  const auto ensure = [&](bool right) {
    if (!right)
      source_.fail(open.offset, "want positional arguments first, then named ones, each kind of * once");
  };
  if (take_symbol("*")) {
    ensure(!arguments.star && !arguments.double_star);
    arguments.star = expression();
  } else if (take_symbol("**")) {
    ensure(!arguments.double_star);
    arguments.double_star = expression();
  } else if (current().is(TokenKind::name) && following().is_symbol("=")) {
    ensure(!arguments.double_star);
    const Token& name = take();
    check_count(arguments.named.size());
    for (const auto& [other, value] : arguments.named)
      if (other == name.text) source_.fail(name.offset, "the argument ", quote(name.text), " is given twice");
    take();
    arguments.named.emplace_back(name.text, expression());
  } else {
    ensure(!arguments.star && !arguments.double_star && arguments.named.empty());
    arguments.positional.push_back(expression());
  }
}

CallArguments Parser::call_arguments() {
  const Level level(*this);
  CallArguments arguments;
  const Token& open = take();
  for (bool first = true; !current().is_symbol(")"); first = false) {
    if (!first) {
      want_symbol(",");
      if (current().is_symbol(")")) break;
    }
    call_argument(arguments, open);
  }
  want_symbol(")");
  return arguments;
}

void Parser::take_arguments(Expression& parent) {
  parent.arguments = call_arguments();
  for (const auto& value : parent.arguments.positional) grow(parent, value.get());
  for (const auto& [name, value] : parent.arguments.named) grow(parent, value.get());
  grow(parent, parent.arguments.star.get());
  grow(parent, parent.arguments.double_star.get());
}

ExpressionPointer Parser::call(ExpressionPointer node) {
  auto result = make(Kind::call, current().offset, std::move(node));
  take_arguments(*result);
  return result;
}

std::string Parser::dotted_name() {
  std::string name = want(TokenKind::name, "a name").text;
  while (take_symbol(".")) name += "." + want(TokenKind::name, "a name").text;
  return name;
}

ExpressionPointer Parser::filter(ExpressionPointer node, bool begins_inline) {
  while (current().is_symbol("|") || begins_inline) {
    if (!begins_inline) take();
    begins_inline = false;
    auto result = make(Kind::filter, current().offset, std::move(node));
    result->name = dotted_name();
    if (current().is_symbol("(")) take_arguments(*result);
    node = std::move(result);
  }
  return node;
}

ExpressionPointer Parser::test(ExpressionPointer node) {
  const std::size_t offset = take().offset;
  const bool negated = take_name("not");
  auto result = make(Kind::test, offset, std::move(node));
  result->name = dotted_name();
  const Token& next = current();
  if (next.is_symbol("(")) {
    take_arguments(*result);
  } else if ((next.is(TokenKind::name) && !next.is_name("else") && !next.is_name("or") &&
              !next.is_name("and")) ||
             next.is(TokenKind::text) || next.is(TokenKind::integer) || next.is(TokenKind::real) ||
             next.is_symbol("[") || next.is_symbol("{")) {
    if (next.is_name("is")) refuse("no second test behind a test");
    result->arguments.positional.push_back(postfix(primary()));
    grow(*result, result->arguments.positional.back().get());
  }
  return negated ? make(Kind::negation, offset, std::move(result)) : std::move(result);
}

}  // namespace nemocube::jinja

#include <algorithm>
#include <set>

#include "data/chat/jinja/parser.h"
#include "data/chat/jinja/parser_class.h"

namespace nemocube::jinja {

namespace {

std::string listed(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += cat(text.empty() ? "" : " or ", "{% ", name, " %}");
  return text;
}

}  // namespace

std::unique_ptr<Statement> Parser::make(Statement::Kind kind, std::size_t offset) const {
  auto node = std::make_unique<Statement>();
  node->kind = kind;
  node->offset = offset;
  return node;
}

/// Statements up to one of `ends`, whose name becomes the current token, or to the template's end.
Body Parser::body(Names ends) {
  Body result;
  while (!current().is(TokenKind::end)) {
    if (!current().is(TokenKind::statement_begin)) {
      result.push_back(output());
      continue;
    }
    take();
    if (current().is(TokenKind::name) && std::ranges::find(ends, current().text) != ends.end()) return result;
    result.push_back(statement());
    want(TokenKind::statement_end, "%}");
  }
  if (ends.size() > 0)
    source_.fail(current().offset, "want ", listed(ends), " that ends {% ", open_.back(),
                 " %}, got the template's end");
  return result;
}

/// The end of the tag that begins a block, and the block.
Body Parser::statements(Names ends) {
  take_symbol(":");
  want(TokenKind::statement_end, "%}");
  return body(ends);
}

std::unique_ptr<Statement> Parser::output() {
  auto node = make(Statement::Kind::output, current().offset);
  while (true) {
    if (current().is(TokenKind::data)) {
      auto data = make(Kind::constant, current().offset);
      data->value = Value(take().text);
      node->values.push_back(std::move(data));
    } else if (current().is(TokenKind::output_begin)) {
      take();
      node->values.push_back(tuple({}));
      want(TokenKind::output_end, "}}");
    } else {
      return node;
    }
  }
}

std::unique_ptr<Statement> Parser::statement() {
  const Level level(*this);
  const Token& tag = want(TokenKind::name, "the name of a statement");
  open_.push_back(tag.text);
  std::unique_ptr<Statement> node;
  if (tag.text == "for") {
    node = for_statement(tag.offset);
  } else if (tag.text == "if") {
    node = if_statement(tag.offset);
  } else if (tag.text == "set") {
    node = set_statement(tag.offset);
  } else if (tag.text == "macro") {
    node = macro_statement(tag.offset);
  } else if (tag.text == "call") {
    node = call_statement(tag.offset);
  } else if (tag.text == "filter") {
    node = filter_statement(tag.offset);
  } else if (tag.text == "with") {
    node = with_statement(tag.offset);
  } else if (tag.text == "print") {
    node = print_statement(tag.offset);
  } else if (tag.text == "generation") {
    node = generation_statement(tag.offset);
  } else if (tag.text == "break" || tag.text == "continue") {
    node = make(tag.text == "break" ? Statement::Kind::leave : Statement::Kind::next, tag.offset);
  } else {
    static const std::set<std::string, std::less<>> jinja{"block",  "extends", "include",
                                                          "import", "from",    "autoescape"};
    open_.pop_back();
    source_.fail(tag.offset, "want a statement such as for, if, set or macro, got ", quote(tag.text),
                 jinja.contains(tag.text) ? ", which this build does not have" : "",
                 open_.empty() ? "" : cat(" inside {% ", open_.back(), " %}"));
  }
  open_.pop_back();
  return node;
}

void Parser::check_target(const Expression& target) const {
  if (target.kind == Kind::tuple)
    for (const auto& part : target.parts) check_target(*part);
  else if (target.kind != Kind::name && target.kind != Kind::attribute_target)
    source_.fail(target.offset, "want a name to assign to");
}

ExpressionPointer Parser::target(std::string_view end_name, bool attribute_targets) {
  TupleForm form;
  form.targets = true;
  form.attribute_targets = attribute_targets;
  form.end_name = end_name;
  auto node = tuple(form);
  check_target(*node);
  return node;
}

std::unique_ptr<Statement> Parser::for_statement(std::size_t offset) {
  auto node = make(Statement::Kind::loop, offset);
  const std::size_t begin = at_;
  node->target = target("in", false);
  const std::size_t end = at_;
  want_name("in");
  TupleForm form;
  form.with_condition = false;
  form.end_name = "recursive";
  node->value = tuple(form);
  if (take_name("if")) {
    node->condition = expression();
    const std::size_t behind = at_;
    at_ = begin;  // the condition has variables of its own, so it needs a target of its own
    node->condition_target = target("in", false);
    expect(at_ == end, "a target of a loop is read the same way twice");
    at_ = behind;
  }
  node->recursive = take_name("recursive");
  node->body = statements({"endfor", "else"});
  if (take().text == "else") {
    node->otherwise = statements({"endfor"});
    take();
  }
  return node;
}

std::unique_ptr<Statement> Parser::if_statement(std::size_t offset) {
  auto node = make(Statement::Kind::branches, offset);
  TupleForm form;
  form.with_condition = false;
  while (true) {
    Branch branch;
    branch.condition = tuple(form);
    branch.body = statements({"elif", "else", "endif"});
    node->branches.push_back(std::move(branch));
    const std::string& name = take().text;
    if (name == "elif") continue;
    if (name == "else") {
      node->otherwise = statements({"endif"});
      take();
    }
    return node;
  }
}

std::unique_ptr<Statement> Parser::set_statement(std::size_t offset) {
  auto node = make(Statement::Kind::assign, offset);
  node->target = target("", true);
  if (take_symbol("=")) {
    node->value = tuple({});
    return node;
  }
  node->kind = Statement::Kind::assign_block;
  node->filter = filter(nullptr);
  node->body = statements({"endset"});
  take();
  return node;
}

void Parser::signature(Macro& macro) {
  want_symbol("(");
  while (!current().is_symbol(")")) {
    if (!macro.parameters.empty()) want_symbol(",");
    const Token& name = want(TokenKind::name, "the name of a parameter");
    Parameter parameter{name.text, name.offset};
    check_count(macro.parameters.size());
    static const std::set<std::string, std::less<>> words{"true", "false", "none", "True", "False", "None"};
    if (words.contains(name.text)) source_.fail(name.offset, "want the name of a parameter, got ", name.text);
    for (const Parameter& other : macro.parameters)
      if (other.name == name.text)
        source_.fail(name.offset, "the parameter ", quote(name.text), " is there twice");
    if (take_symbol("="))
      parameter.otherwise = expression();
    else if (!macro.parameters.empty() && macro.parameters.back().otherwise)
      source_.fail(name.offset, "want a default, since the parameter before has one");
    macro.parameters.push_back(std::move(parameter));
  }
  want_symbol(")");
}

std::unique_ptr<Statement> Parser::macro_statement(std::size_t offset) {
  auto node = make(Statement::Kind::macro, offset);
  node->macro = std::make_unique<Macro>();
  node->macro->name = want(TokenKind::name, "the name of the macro").text;
  signature(*node->macro);
  node->macro->body = statements({"endmacro"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::call_statement(std::size_t offset) {
  auto node = make(Statement::Kind::call_block, offset);
  node->macro = std::make_unique<Macro>();
  if (current().is_symbol("(")) signature(*node->macro);
  node->value = expression();
  if (node->value->kind != Kind::call) source_.fail(offset, "want the call of a macro behind call");
  node->macro->body = statements({"endcall"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::filter_statement(std::size_t offset) {
  auto node = make(Statement::Kind::filter_block, offset);
  node->filter = filter(nullptr, true);
  node->body = statements({"endfilter"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::with_statement(std::size_t offset) {
  auto node = make(Statement::Kind::with, offset);
  while (!current().is(TokenKind::statement_end)) {
    if (!node->targets.empty()) want_symbol(",");
    auto one = target("", false);
    node->targets.push_back(std::move(one));
    want_symbol("=");
    node->values.push_back(expression());
  }
  node->body = statements({"endwith"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::print_statement(std::size_t offset) {
  auto node = make(Statement::Kind::output, offset);
  while (!current().is(TokenKind::statement_end)) {
    if (!node->values.empty()) want_symbol(",");
    node->values.push_back(expression());
  }
  return node;
}

std::unique_ptr<Statement> Parser::generation_statement(std::size_t offset) {
  has_generation_ = true;
  auto node = make(Statement::Kind::generation, offset);
  node->macro = std::make_unique<Macro>();
  node->macro->body = statements({"endgeneration"});
  take();
  return node;
}

Tree Parser::run() {
  Tree tree;
  tree.body = body({});
  tree.has_generation = has_generation_;
  return tree;
}

Tree parse(const Source& source) { return Parser(source).run(); }

}  // namespace nemocube::jinja

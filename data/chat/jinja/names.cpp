#include "data/chat/jinja/names.h"

namespace nemocube::jinja {

namespace {

void visit_parameters(const Macro& macro, const NameVisitor& visit) {
  for (const Parameter& parameter : macro.parameters)
    visit(parameter.name, NameUse::parameter, parameter.offset);
  for (const Parameter& parameter : macro.parameters)
    visit_names(parameter.otherwise.get(), NameUse::load, visit);
}

void visit_all(const std::vector<ExpressionPointer>& expressions, NameUse use, const NameVisitor& visit) {
  for (const auto& expression : expressions) visit_names(expression.get(), use, visit);
}

}  // namespace

void visit_names(const Expression* expression, NameUse use, const NameVisitor& visit) {
  if (!expression) return;
  if (expression->kind == Expression::Kind::name) visit(expression->name, use, expression->offset);
  visit_all(expression->parts, use, visit);
  const CallArguments& arguments = expression->arguments;
  visit_all(arguments.positional, use, visit);
  for (const auto& [name, value] : arguments.named) visit_names(value.get(), use, visit);
  visit_names(arguments.star.get(), use, visit);
  visit_names(arguments.double_star.get(), use, visit);
}

void visit_names(const Body& body, const NameVisitor& visit) {
  for (const auto& statement : body) visit_names(*statement, visit);
}

void visit_names(const Statement& statement, const NameVisitor& visit) {
  using Kind = Statement::Kind;
  const auto load = [&](const ExpressionPointer& expression) {
    visit_names(expression.get(), NameUse::load, visit);
  };
  switch (statement.kind) {
    case Kind::loop:
      visit_names(statement.target.get(), NameUse::store, visit);
      load(statement.value);
      visit_names(statement.body, visit);
      visit_names(statement.otherwise, visit);
      load(statement.condition);
      break;
    case Kind::branches:
      for (const Branch& branch : statement.branches) {
        load(branch.condition);
        visit_names(branch.body, visit);
      }
      visit_names(statement.otherwise, visit);
      break;
    case Kind::filter_block:
      visit_names(statement.body, visit);
      load(statement.filter);
      break;
    case Kind::macro:
    case Kind::call_block:
    case Kind::generation:
      load(statement.value);
      visit_parameters(*statement.macro, visit);
      visit_names(statement.macro->body, visit);
      break;
    default:
      visit_names(statement.target.get(), NameUse::store, visit);
      load(statement.filter);
      load(statement.value);
      visit_all(statement.targets, NameUse::parameter, visit);
      visit_all(statement.values, NameUse::load, visit);
      visit_names(statement.body, visit);
  }
}

bool uses_undeclared(const Body& body, const std::string& name) {
  bool used = false, declared = false;
  visit_names(body, [&](const std::string& other, NameUse use, std::size_t) {
    if (other != name || declared) return;
    if (use == NameUse::load)
      used = true;
    else if (!used)
      declared = true;
  });
  return used;
}

}  // namespace nemocube::jinja

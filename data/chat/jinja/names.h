#pragma once
#include <functional>
#include <string>

#include "data/chat/jinja/tree.h"

namespace nemocube::jinja {

/// How a name occurs in a template.
enum class NameUse { load, store, parameter };
using NameVisitor = std::function<void(const std::string& name, NameUse use, std::size_t offset)>;

/// Calls `visit` with all names in the order of Jinja's own visitors, inner scopes included.
void visit_names(const Expression* expression, NameUse use, const NameVisitor& visit);
void visit_names(const Statement& statement, const NameVisitor& visit);
void visit_names(const Body& body, const NameVisitor& visit);

/// Whether `body` reads `name` before anything there declares it (Jinja's find_undeclared).
bool uses_undeclared(const Body& body, const std::string& name);

}  // namespace nemocube::jinja

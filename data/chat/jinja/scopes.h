#pragma once
#include "data/chat/jinja/lexer.h"
#include "data/chat/jinja/tree.h"

namespace nemocube::jinja {

/// Gives every name its place, by the rules of Jinja's compiler: loops, macros, with, call, filter and set
/// blocks have variables of their own; an assignment anywhere in a scope makes the name a variable of that
/// scope. The variable begins with the value further out, with the caller's value, or with none. Checks also
/// what Jinja checks when it compiles: filters and tests exist (inside if, only when they are used), break
/// and continue stand in loops. Throws Error naming the place.
void resolve_names(Tree& tree, const Source& source);

}  // namespace nemocube::jinja

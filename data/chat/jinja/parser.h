#pragma once
#include "data/chat/jinja/lexer.h"
#include "data/chat/jinja/tree.h"

namespace nemocube::jinja {

/// The tree of a template, names not yet resolved. Takes time in proportion to the template's length. Throws
/// Error naming the place where something else is wanted, and beyond the limits of the first row in
/// docs/chat_templates.md.
Tree parse(const Source& source);

}  // namespace nemocube::jinja

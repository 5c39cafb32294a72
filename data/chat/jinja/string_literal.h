#pragma once
#include <string>
#include <string_view>

#include "data/chat/jinja/lexer.h"

namespace nemocube::jinja {

/// The value of a text between quotes, with Python's escapes. `offset` is its place. Throws Error for escapes
/// that are cut short, for \N{...}, and for halves of surrogate pairs.
std::string string_literal(const Source& source, std::size_t offset, std::string_view body);

}  // namespace nemocube::jinja

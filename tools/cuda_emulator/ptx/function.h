#pragma once
#include <string_view>
#include <unordered_set>

#include "ptx/lexer.h"
#include "ptx/source_lines.h"
#include "ptx/syntax.h"

namespace emulator::ptx {

/// Parses a function from its results or name on, behind ".visible .entry" or ".extern .func" (whose meanings
/// `function` holds already), to the end of its body or the ';' of a declaration (PTX ISA 11.1, 11.4).
/// Returns the name as it stands in the text. `module_names`: variables and functions declared so far.
std::string_view parse_function(Lexer& lexer, SourceLines& lines,
                                const std::unordered_set<std::string_view>& module_names, Function& function);

}  // namespace emulator::ptx

#pragma once
#include <string_view>
#include <vector>

#include "ptx/lexer.h"
#include "ptx/syntax.h"

namespace emulator::ptx {

/// The space of a directive (".global"), or Space::none. ".reg" and ".param" count too.
Space space_of(const Token& token);

/// ".attribute(...)" behind its word, parentheses within included; whether .managed is among the attributes.
bool parse_attributes(Lexer& lexer);

struct DeclaredVariable {
  std::string_view name;  ///< of the text, as Variable::name
  Variable variable;
};
/// The rest of a declaration of variables behind its space directive, to its ';' (PTX ISA 5.4):
/// ".align 4 .b8 x[4] = {1, 2}, y;".
std::vector<DeclaredVariable> parse_variables(Lexer& lexer, Space space);

/// Registers of one .reg directive: a single name, or `count` of a family ("%r<86>" has prefix "%r" and 86).
struct RegisterNames {
  std::string_view name;
  std::uint32_t count;
  bool family;
};
/// The rest of a .reg directive, to its ';'.
std::vector<RegisterNames> parse_registers(Lexer& lexer, Type& type);

/// "(.param .b64 a, .reg .b32 b)" of functions and prototypes; empty when there is no '('.
std::vector<Parameter> parse_parameters(Lexer& lexer);

}  // namespace emulator::ptx

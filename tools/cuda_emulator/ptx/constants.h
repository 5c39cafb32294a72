#pragma once
#include <string_view>

#include "ptx/lexer.h"
#include "ptx/syntax.h"

namespace emulator::ptx {

/// The value of one literal (PTX ISA 4.5): decimal, hexadecimal, octal, binary, 0f..., 0d..., or decimal
/// floating point (an f64). Throws SyntaxError for anything else.
Immediate number(std::string_view literal);

/// Whether a constant expression can start with the current token.
bool at_constant(const Lexer& lexer);

/// A constant expression of literals, WARP_SZ, signs, parentheses and the operators * / + - << >> & ^ |,
/// computed as signed 64-bit integers. Floating point literals take a sign only.
Immediate constant(Lexer& lexer);
/// The same where only an integer makes sense.
std::int64_t integer_constant(Lexer& lexer);

}  // namespace emulator::ptx

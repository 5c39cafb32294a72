#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "ptx/syntax.h"

namespace emulator::ptx {

/// The text breaks PTX's grammar, or uses a directive that is not known. The message has line number and
/// line.
class SyntaxError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parses one module. Opcodes and modifiers are not judged here: the instruction table does
/// (instructions/table.h).
Module parse(std::string_view text);

}  // namespace emulator::ptx

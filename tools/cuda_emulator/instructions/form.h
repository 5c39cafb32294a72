#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "machine/program.h"

namespace emulator {

/// A statement that no entry of the instruction table understands, or whose operands do not fit. The decoder turns it into an
/// instruction that reports the text if it is ever executed.
class UnknownInstruction : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One statement while it is being decoded. An entry of the instruction table takes modifiers and operands from the Form and
/// returns what executes them. Whatever stays untaken makes the statement an UnknownInstruction, so that no modifier and no operand
/// is ever ignored by accident.
class Form {
 public:
  virtual ~Form() = default;
  explicit Form(const ptx::Statement& statement, Instruction& instruction);

  // Modifiers. Order is free (PTX mixes "add.release.gpu" and "release.gpu.add"), except among types.
  /// Removes the modifier if the statement has it.
  bool take(std::string_view modifier);
  /// Removes and returns the one of the list that the statement has; "" when it has none.
  std::string_view take_one_of(std::initializer_list<std::string_view> modifiers);
  /// Removes and returns the first remaining type modifier (Type::none when there is none left).
  ptx::Type take_type();
  /// Like take_type, but it must be one of the list; UnknownInstruction otherwise.
  ptx::Type take_type(std::initializer_list<ptx::Type> allowed);
  /// Whether a modifier is (still) there.
  bool has(std::string_view modifier) const;

  // Operands: each call appends one Slot to the instruction, in order of the calls. `number` counts the statement's operands
  // from 0. Widths are checked: a register must be as wide as the type; UnknownInstruction otherwise.
  std::size_t operand_count() const { return statement_.operands.size(); }
  /// The operand as written, for decoders that read it themselves. Appends nothing.
  const ptx::Operand& operand(std::size_t number);
  /// Takes an operand that means nothing to the emulator (cache policies ...). Appends nothing.
  void ignore(std::size_t number) { operand(number); }
  /// A value that is read: register (not negated), immediate (converted to the type: an integer literal in a floating operand keeps
  /// its bits, a 0d literal in an f32 operand is rounded), address of a variable, special register.
  void source(std::size_t number, ptx::Type type);
  /// A register that is written, or a sink.
  void result(std::size_t number, ptx::Type type);
  /// Predicates: `negated` returns whether "!" stands before the register.
  void source_predicate(std::size_t number, bool& negated);
  void result_predicate(std::size_t number);
  /// Both parts of "d|p"; without "|p" the second slot is the sink.
  void result_pair(std::size_t number, ptx::Type first, ptx::Type second);
  /// Elements of {...}, or a scalar for a vector of one; appends all. Returns their number.
  std::size_t sources(std::size_t number, ptx::Type type);
  std::size_t results(std::size_t number, ptx::Type type);
  /// A register that may be wider than the type (ld, cvt destinations) or, as a source, wider (st, cvt sources): appends the slot and
  /// returns the register's width in bytes (the immediate takes the type's own).
  std::uint32_t wide_result(std::size_t number, ptx::Type type);
  std::uint32_t wide_source(std::size_t number, ptx::Type type);
  /// The same for the elements of {...}: all of one width. Returns their number and sets the width.
  std::size_t wide_results(std::size_t number, ptx::Type type, std::uint32_t& register_bytes);
  std::size_t wide_sources(std::size_t number, ptx::Type type, std::uint32_t& register_bytes);
  /// "[base+offset]": appends a slot of addresses, 4 or 8 bytes wide (address_bytes), and sets Instruction::displacement.
  void address(std::size_t number);
  /// Width in bytes (4 or 8) of the address slot that `address` appended last.
  std::uint32_t address_bytes() const { return address_bytes_; }
  /// A slot that nobody reads (as wide as the widest row), for a result the statement leaves out.
  void sink();
  /// A constant row of the type that holds `bits` in every lane.
  virtual void constant(ptx::Type type, std::uint64_t bits) = 0;

  /// The value of an operand that must be an integer literal; UnknownInstruction otherwise. Appends nothing.
  std::uint64_t literal(std::size_t number);
  bool is_literal(std::size_t operand) const;
  bool is_register(std::size_t operand) const;
  bool is_vector(std::size_t operand) const;
  /// Type of the register at an operand (of its first element for a vector).
  ptx::Type register_type(std::size_t operand) const;

  const ptx::Statement& statement() const { return statement_; }
  Instruction& instruction() { return instruction_; }
  [[noreturn]] void unknown(const std::string& why) const;
  /// Throws unless all modifiers were taken.
  void finish() const;
  /// Throws unless all operands were taken.
  void finish_operands() const;

 protected:
  // What the decoder supplies.
  virtual void append(Slot slot) = 0;
  virtual Slot slot_of(const ptx::Scalar& scalar, ptx::Type type, bool written, bool any_width,
                       std::uint32_t* width) = 0;
  virtual Slot sink_slot() = 0;
  virtual ptx::Type type_of_register(std::uint32_t index) const = 0;
  const ptx::Statement& statement_;
  Instruction& instruction_;
  std::vector<std::string_view> modifiers_;  ///< not yet taken
  std::vector<bool> taken_;                  ///< which operands are taken
  std::uint32_t address_bytes_ = 8;
};

/// Which of an opcode's rows a statement belongs to: by the first of its type modifiers. b16 ... b64 and pred are integers.
enum class TypeGroup : std::uint8_t { any, integer, floating, half };
TypeGroup group_of(const ptx::Statement& statement);

/// A row of the instruction table.
struct InstructionEntry {
  std::string_view opcode;
  TypeGroup group;  ///< any: all statements of the opcode
  /// Takes modifiers and operands, sets the instruction's class and fields, returns the function that executes it. Throws
  /// UnknownInstruction.
  Execute (*decode)(Form&);
  std::string_view section;  ///< PTX ISA section, for readers
};

/// The whole instruction set, one row an opcode: instructions/table.cpp.
const InstructionEntry* find_instruction(std::string_view opcode, TypeGroup group);

}  // namespace emulator

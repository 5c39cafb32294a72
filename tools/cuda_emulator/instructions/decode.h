#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "instructions/form.h"
#include "instructions/system_call.h"
#include "machine/program.h"

/// Turns a function's statements into instructions: registers become rows, names become addresses, labels become indices.
namespace emulator {

/// What a name means to a function, as far as the module around it decides.
struct Symbol {
  enum class Kind : std::uint8_t {
    address,  ///< .global, .const, .shared with a fixed offset, functions whose address is taken: `value`
    dynamic_shared,  ///< extern .shared: known when a kernel runs
  } kind = Kind::address;
  std::uint64_t value = 0;
};

/// What decoding asks the module for.
class Names {
 public:
  virtual ~Names() = default;
  /// A variable or function that is not declared in the function itself. Throws std::runtime_error when nothing has the name.
  virtual Symbol symbol(std::string_view name) = 0;
  /// Offset in shared memory of a .shared variable of the function's own body.
  virtual Symbol shared_variable(std::string_view name) = 0;
  /// The function of that name, decoded or to be decoded before it runs; nullptr when no unit defines it.
  virtual const Function* function(std::string_view name) = 0;
};

/// A call statement, ready to run.
struct CallSite {
  struct Copy {
    std::uint32_t offset;  ///< in the caller's parameter area
    std::uint32_t bytes;
  };
  const Function* function = nullptr;  ///< null: indirect (operand 0 holds the address), or a system call
  SystemCall system = nullptr;
  std::vector<Copy> arguments, results;
  std::string name;
};

/// Sizes and places of a function's parameters; fills everything of Function but its code.
void declare_function(Function& function, const ptx::Function& source, const ptx::Module& module);
/// Decodes the body. A statement that is not understood becomes an instruction that reports so when it is executed.
void decode_function(Function& function, Names& names);

/// The form behind a Form& that a decoder of control flow gets.
class FunctionDecoder;
class StatementForm : public Form {
 public:
  StatementForm(const ptx::Statement& statement, Instruction& instruction, FunctionDecoder& decoder);
  void constant(ptx::Type type, std::uint64_t bits) override;

  /// Index into the source's labels of a label operand.
  std::uint32_t label(std::size_t number);
  Names& names();
  const ptx::Function& source_function() const;
  /// Where a .param variable of the function lies in its parameter area; nullopt for other names.
  std::optional<CallSite::Copy> parameter(std::string_view name) const;
  /// Keeps an object as long as the function lives, and points Instruction::extra at it.
  void keep(std::shared_ptr<void> object);
  /// The instruction's target (and, for brx, `targets`) are label indices that the decoder turns into code indices at the end.
  void branches() { instruction_.detail = branch_mark; }
  static constexpr std::uint64_t branch_mark = 0x6c61'6265'6c00'0000;

 protected:
  void append(Slot slot) override;
  Slot slot_of(const ptx::Scalar& scalar, ptx::Type type, bool written, bool any_width,
               std::uint32_t* width) override;
  Slot sink_slot() override;
  ptx::Type type_of_register(std::uint32_t index) const override;

 private:
  FunctionDecoder& decoder_;
};

}  // namespace emulator

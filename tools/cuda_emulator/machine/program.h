#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine/lanes.h"
#include "ptx/syntax.h"

/// Code ready to run: what decoding (instructions/decode.h) makes of a function's statements.
namespace emulator {

class Warp;
struct Instruction;
struct Function;
struct UndefinedRule;

/// Executes one instruction for the lanes of the mask: the lanes of the running group whose guard holds (never none, except
/// for control flow and instructions of a group of lanes, which want to be called anyway: see Instruction::always).
using Execute = void (*)(Warp&, const Instruction&, LaneMask);

/// Where the values of an operand lie: a row of the frame's registers, or of the function's constants (immediates,
/// addresses of variables). A row holds one value for each lane, each as wide as its type: 64 bytes for .b16, 128 for .b32, 256
/// for .b64, 512 for .b128. A predicate's row is one LaneMask.
struct Slot {
  std::int32_t where =
      0;  ///< >= 0: byte offset in the registers; < 0: ~where is a byte offset in the constants
  std::uint8_t width = 0;  ///< bytes of a lane's value; 0: a predicate
  bool written = false;    ///< a result
};

/// What an instruction counts as (machine/watch.h, Tally).
enum class InstructionClass : std::uint8_t {
  integer,
  logic,
  move,
  compare,
  convert,
  half,
  single,
  dbl,
  special,
  matrix,
  load_global,
  store_global,
  load_shared,
  store_shared,
  load_local,
  store_local,
  load_constant,
  parameter,
  generic,
  atomic,
  async_copy,
  fence,
  warp,
  barrier,
  control,
  other,
};
constexpr int instruction_classes = static_cast<int>(InstructionClass::other) + 1;
const char* name_of(InstructionClass kind);

enum class Scope : std::uint8_t { thread, block, cluster, device, system };
/// How an access takes part in the memory model (PTX ISA 8). Volatile accesses are relaxed ones of system scope.
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acquire_release, sequential };

/// Modifiers of loads, stores and atomics.
struct MemoryModifiers {
  ptx::Space space = ptx::Space::none;  ///< none: generic
  Order order = Order::weak;
  Scope scope = Scope::thread;
  bool read_only = false;   ///< .nc
  bool exchange = false;    ///< atom.exch
  std::uint8_t vector = 1;  ///< elements
  std::uint8_t element_bytes = 0;
  std::uint32_t used_bytes = ~0u;  ///< of a vector load: bit i: byte i is used
};

struct Instruction {
  Execute execute = nullptr;
  const Slot* operands = nullptr;  ///< in the order in which the decoder (instructions/form.h) appended them
  std::uint16_t operand_count = 0;
  InstructionClass kind = InstructionClass::other;
  bool guarded = false, guard_negated = false;
  bool always = false;          ///< execute is called even if the guard holds for no lane
  bool results_unused = false;  ///< no instruction reads what this one writes to registers
  Slot guard;
  std::uint32_t index = 0;         ///< of this instruction in Function::code
  std::uint32_t target = 0;        ///< of a branch: index in Function::code
  std::uint8_t multiply_adds = 0;  ///< a lane (fma, mad); for matrix instructions see multiply_adds_of_warp
  std::uint32_t multiply_adds_of_warp = 0;
  std::int64_t displacement = 0;  ///< of the address operand
  std::uint64_t detail = 0;       ///< free for the instruction's own file: lut, mode, count ...
  MemoryModifiers memory;
  const void* extra = nullptr;  ///< free: a Function* to call, a CallSite* ...; owned by the Function
  const ptx::Statement* statement = nullptr;
  const UndefinedRule* undefined =
      nullptr;  ///< what becomes of undefined bits (checks/undefined.h); nullptr: none may come in
};

/// Where a parameter lies in a function's parameter area.
struct ParameterPlace {
  std::uint32_t offset, bytes;
};

struct Function {
  std::string name;
  bool entry = false;
  const ptx::Function* source = nullptr;
  const ptx::Module* module = nullptr;
  std::vector<Instruction> code;  ///< ends with an instruction that returns
  std::vector<std::unique_ptr<Slot[]>> operand_pool;
  std::vector<std::byte> constants;           ///< rows; 64-byte aligned offsets
  std::vector<std::shared_ptr<void>> extras;  ///< owners of Instruction::extra
  std::uint32_t register_bytes = 0;
  /// Rows of registers that may be read before they are written, which are zero when a frame begins. Others hold anything.
  struct RowRange {
    std::uint32_t offset, bytes;
  };
  std::vector<RowRange> read_first;
  std::uint32_t parameter_bytes = 0;  ///< a lane: parameters, results, and .param variables of call scopes
  std::vector<ParameterPlace> parameters, results;
  std::uint32_t local_bytes = 0;  ///< .local variables of one call
};

/// Bytes of shared memory behind a variable that belong to nothing. Addresses as in the shared window.
struct SharedGap {
  std::uint32_t begin, end;
  std::string variable;  ///< demangled name
  std::uint32_t bytes;   ///< of the variable
};

/// A kernel of a loaded module.
struct Kernel {
  std::string name;      ///< mangled
  std::string readable;  ///< demangled
  const Function* function = nullptr;
  const std::string* unit_text = nullptr;  ///< PTX of its translation unit, for ptxas (machine/resources.h)
  std::uint32_t parameter_bytes = 0;
  std::vector<ParameterPlace> parameters;  ///< offsets in the parameter block of a launch
  std::uint32_t static_shared = 0;         ///< bytes, without the reserved 1 KiB and without gaps
  /// Where extern shared arrays begin: aligned for all, behind all variables and gaps.
  std::uint32_t dynamic_shared_offset = 0;
  std::uint32_t shared_gap_bytes = 0;  ///< of dynamic_shared_offset: what a device would not have
  std::vector<SharedGap> shared_gaps;
  ptx::Dim3 max_threads, required_threads;
  ptx::Dim3 required_cluster;        ///< blocks of a cluster, as the kernel says; x = 0: it does not say
  bool explicit_cluster = false;     ///< every launch must be one of clusters
  bool uses_grid_sync = false;       ///< reads %envreg1 or %envreg2
  bool uses_async_proxy = false;     ///< has bulk copies
  bool launches_dependents = false;  ///< has griddepcontrol.launch_dependents
};

/// Address windows. Generic addresses of shared, local and parameter memory lie where no host or device memory can
/// lie; global addresses are themselves. Addresses within a window are offsets from its base.
constexpr std::uint64_t shared_window = 0x0100'0000'0000'0000;
constexpr std::uint64_t local_window = 0x0200'0000'0000'0000;
constexpr std::uint64_t parameter_window = 0x0300'0000'0000'0000;
constexpr std::uint64_t function_tokens =
    0x0400'0000'0000'0000;  ///< addresses of functions: this + 16 * (index + 1)
constexpr std::uint64_t window_mask = 0xff00'0000'0000'0000;
inline ptx::Space space_of(std::uint64_t generic) {
  switch (generic & window_mask) {
    case shared_window:
      return ptx::Space::shared;
    case local_window:
      return ptx::Space::local;
    case parameter_window:
      return ptx::Space::param;
    default:
      return ptx::Space::global;
  }
}
/// Shared memory of a block begins with 1 KiB that belongs to the system (cooperative groups keep barriers there).
constexpr std::uint32_t reserved_shared = 1024;
/// Bytes at its start that programs may use (cooperative_groups/details/memory.h needs at most 288, from
/// %reserved_smem_offset_1 on). The rest catches small negative offsets.
constexpr std::uint32_t reserved_for_groups = 512;

}  // namespace emulator

#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "instructions/form.h"
#include "instructions/host_access.h"
#include "machine/access.h"
#include "machine/program.h"
#include "machine/warp.h"

/// The path that all instructions with a memory operand share: where the lanes' bytes lie on the host, whether the
/// program may touch them so, and what the checks and counters have to know of the access.
///
/// Addresses of each state space (PTX ISA 5.1, 6.4.1):
/// - global, constant: addresses of AddressSpace, the same as generic ones.
/// - shared: offsets in the block's shared memory; generic: shared_window + offset. The program's part begins at
///   reserved_shared.
/// - local: offsets in the lane's local memory; generic: local_window + offset.
/// - param: parameter_window + offset lies in the launch's parameter block (parameters of the kernel, read-only), as a
///   generic address too; a plain offset lies in the lane's parameter area of the running frame (parameters of
///   functions and of calls).
namespace emulator {

/// One memory instruction of a warp, or one phase of an instruction that touches several places a lane:
///     MemoryAccess m(AccessKind::load, i, lanes);          // bytes, order, scope ... from i.memory
///     warp.addresses(i, 1, 8, lanes, m.access.address);
///     m.open(warp, i, i.memory.space);                     // checks; throws KernelFault
///     for_lanes(lanes, [&](int lane) { ... read_bytes(m.host[lane], ...) ... });
///     m.close(warp, i);                                    // after the bytes were moved
struct MemoryAccess {
  /// What is done. open() turns addresses of shared, local and parameter windows into offsets.
  Access access;
  /// Where each lane's first byte lies. Valid after open() for the lanes of the access.
  std::array<std::byte*, warp_size> host;
  /// Lanes whose bytes lie in global or constant memory, which other host threads may use at the same time.
  LaneMask global = 0;
  /// Lanes whose bytes lie in the block's shared memory.
  LaneMask shared = 0;
  /// What every address must be a multiple of, if not the bytes of a lane.
  std::uint32_t alignment = 0;
  /// ldmatrix and stmatrix: the counters take each lane's 16 bytes as a row of an 8x8 matrix.
  bool matrix_rows = false;
  /// A store or atomic: whether it changes memory, as far as can be seen. open() finds out for stores.
  bool changes = true;
  /// After open(), if access.carries: some bytes that the lanes read were never written.
  bool unwritten = false;

  MemoryAccess(AccessKind kind, const Instruction& i, LaneMask lanes);

  /// Splits generic addresses (`space` none) by window; verifies for every lane alignment, bounds and life of the
  /// memory; lets the checks judge the access and the counters count it. A lane that may not do its access is reported
  /// and ends the kernel: KernelFault 700 (out of bounds, freed), 716 (misaligned), 717 (wrong window).
  /// A store of cp.async to shared memory (access.copy) is left to watch::copy_starts.
  void open(Warp& warp, const Instruction& i, ptx::Space space);
  /// Follows the movement of the bytes: strong and atomic accesses synchronise, stores and atomics that change memory count as progress.
  void close(Warp& warp, const Instruction& i);

 private:
  void open_spaces(Warp& warp, const Instruction& i, ptx::Space space);
};

/// The host's view of [address, address + bytes) for one lane by a generic address, without checks and counters; nullptr
/// when the lane may not touch all of it. For system calls.
std::byte* generic_memory(Warp& warp, int lane, std::uint64_t address, std::uint64_t bytes);

/// What the lanes of a strong access have read and where, for notice_spinning: equal for equal places and values.
class Digest {
 public:
  void add(std::uint64_t bits) { value_ = (value_ ^ bits) * 0x9e37'79b9'7f4a'7c15 + 1; }
  /// The same for bits that were read.
  void read(std::uint64_t bits) {
    if (!any_) first_ = bits, any_ = true;
    add(bits);
  }
  std::uint64_t value() const { return value_; }
  std::uint64_t first() const { return first_; }  ///< that was read

 private:
  std::uint64_t value_ = 0, first_ = 0;
  bool any_ = false;
};

/// Lets other lanes, warps and blocks go first when a strong access has read the same values at the same places many
/// times in a row: the warp waits in a loop for what others write.
void notice_spinning(Warp& warp, const Instruction& i, const MemoryAccess& access, const Digest& read);

/// Takes the state space, the order (.weak .relaxed .acquire .release .acq_rel .volatile) and the scope of a load, store
/// or atomic from the form into its instruction's MemoryModifiers. `unnamed`: the order when none is named.
void take_memory_modifiers(Form& form, Order unnamed);

}  // namespace emulator

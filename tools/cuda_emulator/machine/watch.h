#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "machine/access.h"
#include "machine/lanes.h"
#include "machine/program.h"

/// What machine/ and instructions/ tell those who watch a kernel run. Checks and counters define what is declared here, in
/// checks/watch.cpp and counters/counters.cpp, and the linker joins both sides: the machine includes no folder of a watcher, and no
/// call is virtual. What a watcher remembers of a launch, a block or a warp lies there as a pointer to a type that only the
/// watcher knows.
namespace emulator {

class Block;
class Launch;
class Warp;
struct AsyncCopy;
struct Frame;
struct MemoryAccess;
struct Participant;

struct LaunchChecks;    ///< checks/state.h
struct BlockChecks;     ///< checks/state.h
class UndefinedValues;  ///< of a warp: checks/undefined.h
struct LaunchCounters;  ///< counters/counters.cpp

struct DeleteWatched {
  void operator()(LaunchChecks* checks) const;
  void operator()(BlockChecks* checks) const;
  void operator()(UndefinedValues* values) const;
  void operator()(LaunchCounters* counters) const;
};
template <class T>
using Watched = std::unique_ptr<T, DeleteWatched>;

/// The checks. Functions that a Warp and an instruction are given report what is wrong there.
namespace watch {

// Launches, blocks, lanes.
Watched<LaunchChecks> launch_begins(const Launch& launch);
Watched<BlockChecks> block_begins(const Block& block);
/// The lanes end.
void lanes_exit(Warp& warp, LaneMask lanes);

// Synchronisation.
/// The warp arrives at a barrier of the block, whether it waits there or not.
void barrier_arrival(Warp& warp, std::uint32_t barrier);
/// The barrier is complete: the warps of `waiting` go on. `all`: it is one of all threads, for which those that have ended count as
/// arrived.
void barrier_complete(Block& block, std::uint32_t barrier, std::uint32_t waiting, bool all);
/// bar.warp.sync by the lanes.
void warp_sync(Warp& warp, LaneMask lanes);
/// fence or membar by the lanes. `device`: of device or system scope.
void fence(Warp& warp, LaneMask lanes, bool device);
/// fence.proxy.async.
void proxy_fence(Warp& warp, bool shared, bool global);
/// A handover through an object in shared memory (mbarrier): what the lane did before, to those who acquire later.
void release(Warp& warp, int lane, std::uint32_t address);
void acquire(Warp& warp, int lane, std::uint32_t address);

// Accesses to memory, whose bounds and alignment are right. Before they happen; the result tells whether the access carries bytes
// that were never written (Access::carries).
bool global_access(Warp& warp, const Instruction& i, const Access& access);
bool shared_access(Warp& warp, const Instruction& i, const Access& access);
/// An atomic or strong access to global memory has happened.
void global_access_done(Warp& warp, const Instruction& i, const Access& access);

// Copies.
/// cp.async: the bytes of shared memory will be written by the lane at some time before it has waited ...
void copy_starts(Warp& warp, const Instruction& i, int lane, std::uint32_t address, std::uint32_t bytes);
/// ... and are written now.
void copy_lands(Warp& warp, const AsyncCopy& copy);
/// A lane's bulk copy has moved bytes of which some were never written.
void copy_carries(Warp& warp, const Instruction& i, int lane, const MemoryAccess& from,
                  const MemoryAccess& to);

// Undefined values: Warp::undefined() is nullptr while the warp holds none, and these functions are not called then, except where it
// says so.
/// What becomes of undefined bits in such a statement (Instruction::undefined).
const UndefinedRule* undefined_rule(const ptx::Statement& statement);
Watched<UndefinedValues> no_undefined_values();
/// Executes an instruction for the lanes whose guard holds. Returns whether the warp still holds undefined values.
bool execute(Warp& warp, const Instruction& i, LaneMask lanes);
/// The lanes return from the frame.
void lanes_return(Warp& warp, const Frame& frame, LaneMask lanes);
/// A load has written its results. Also called when the load brings the warp's first undefined values.
void loaded(Warp& warp, const Instruction& i, const MemoryAccess& m, bool sign, std::uint32_t register_bytes);
/// Follows global_access or shared_access of a store.
void stored(Warp& warp, const Instruction& i, const MemoryAccess& m);
/// shfl: each lane of the participants gets in operand `to` what operand `from` held in lane sources[lane]; those of `invalid` get
/// something defined.
void shuffled(Warp& warp, std::span<const Participant> participants, int to, int from,
              const std::array<std::uint8_t, warp_size>& sources, LaneMask invalid);
/// A system call uses bytes of a lane's local memory. Always called.
void local_used(Warp& warp, const Instruction& i, int lane, std::uint32_t offset, std::uint32_t bytes);

}  // namespace watch

/// The counters: what one host thread counts while it runs blocks of a launch.
class Tally {
 public:
  /// Called once for every executed instruction.
  void executed(const Instruction& i, LaneMask lanes) {
    ++warp_instructions_;
    lane_instructions_ += static_cast<std::uint64_t>(std::popcount(lanes));
    if (enabled_) count(i, lanes);
  }
  /// A global access (after bounds were checked): bytes asked, sectors, L2.
  void global(const Access& access) {
    if (enabled_) count_global(access);
  }
  /// A shared access: wavefronts and their ideal. `matrix_rows`: ldmatrix and stmatrix, whose phases are rows of 16 bytes.
  void shared(const Access& access, bool matrix_rows = false) {
    if (enabled_) count_shared(access, matrix_rows);
  }
  void local(std::uint32_t bytes, LaneMask lanes) {
    local_bytes_ += bytes * static_cast<std::uint64_t>(std::popcount(lanes));
  }
  std::uint64_t warp_instructions() const { return warp_instructions_; }

 private:
  friend struct LaunchCounters;
  void count(const Instruction& i, LaneMask lanes);
  void count_global(const Access& access);
  void count_shared(const Access& access, bool matrix_rows);
  bool enabled_ = false;
  std::uint64_t warp_instructions_ = 0, lane_instructions_ = 0, local_bytes_ = 0;
  std::array<std::uint64_t, instruction_classes> by_class_{};
  std::uint64_t multiply_adds_ = 0, matrix_multiply_adds_ = 0, atomics_ = 0;
  std::uint64_t global_bytes_ = 0, sectors_ = 0, requests_ = 0;
  std::uint64_t wavefronts_ = 0, ideal_wavefronts_ = 0;
  class L2* l2_ = nullptr;
};

namespace count {

Watched<LaunchCounters> launch_begins();
/// A host thread begins to run blocks of the launch, and ends.
Tally thread_begins(LaunchCounters& counters);
void thread_ends(LaunchCounters& counters, const Tally& tally);
/// Adds the launch to the totals of its kernel.
void launch_ends(LaunchCounters& counters, const Launch& launch);

}  // namespace count

}  // namespace emulator

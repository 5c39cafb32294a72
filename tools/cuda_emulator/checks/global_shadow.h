#pragma once
#include <cstdint>

#include "checks/grid_clocks.h"
#include "checks/order.h"
#include "machine/access.h"

/// Checks of global memory: bytes never written, races between the blocks of a launch and between operations of streams.
/// Histories of words: checks/word_history.h. Where they lie: memory/granule.h.
namespace emulator {

class Warp;
class Block;
struct Allocation;
struct Instruction;

/// The part of the order among a launch's blocks (LaunchChecks) that belongs to one block.
struct BlockOrder {
  enum class Pending : std::uint8_t {
    nothing,  ///< no access since the epoch began
    covered,  ///< accesses that the next handover covers, without beginning a new epoch
    epoch,    ///< the next handover begins a new epoch
  };
  GridClocks::Clock clock = nullptr;
  std::uint64_t handovers_seen = 0;  ///< of the launch, right after this block's last; 0: unknown
  std::uint16_t epoch = 1;           ///< of accesses made now; rises with handovers
  std::uint16_t handed_over = 0;     ///< the epoch of the last strong write
  std::uint16_t fenced = 0;          ///< last epoch handed over behind a fence
  Pending pending = Pending::epoch;
  bool strong_writes = false;    ///< in the last epoch that was handed over, after its handover
  bool unfenced_stores = false;  ///< stores from before the last block barrier stand behind no fence
};

/// Judges an access of a kernel to global memory before it happens (bounds and alignment are right already): bytes never
/// written; conflicts with other blocks of the launch and with operations of other streams. Reports and records. Returns whether the
/// access carries bytes that were never written (Access::carries). A strong write hands over
/// what its block has done: before it can be seen.
bool check_global(Warp& warp, const Instruction& i, const Access& access);
/// After an atomic or strong access has happened at these addresses: takes what others have handed over there. Call right after the
/// access.
void synchronise_global(Warp& warp, const Instruction& i, const Access& access);
/// fence of device or system scope by the lanes.
void fence_global(Warp& warp, LaneMask lanes);
/// The block has passed a barrier of all its threads.
void block_barrier_global(Block& block);

/// Copies, fills and library calls: the whole range is read or written by one operation. Reports at most one conflict. `what`
/// names the access in messages ("cudaMemcpyAsync"). Does not touch the marks of written bytes. Nothing is kept of host memory.
void check_range(OperationId operation, std::uint64_t address, std::uint64_t bytes, bool write,
                 const char* what);
/// The operation frees the allocation: all operations that used it must come before by the order of the program, not by chance.
void check_free(Allocation& allocation, OperationId operation);

}  // namespace emulator

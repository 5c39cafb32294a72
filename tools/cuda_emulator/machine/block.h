#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "machine/warp.h"
#include "machine/watch.h"
#include "memory/address_space.h"

namespace emulator {

class Launch;

enum class BarrierUse : std::uint8_t { sync, arrive, reduce_popc, reduce_and, reduce_or };

/// The threads of one block, their shared memory and their barriers. A block can be left after every turn and resumed later.
class Block {
 public:
  Block(Launch& launch, std::uint64_t index, std::uint64_t seed);
  ~Block();

  /// Runs warps in a seeded random order (Launch::in_order: one after the other) until the block has ended or has used about `budget` instructions. Throws KernelFault.
  /// Returns whether the block has ended.
  bool run(std::uint64_t budget, Tally& tally);
  /// Whether the last turn did nothing but wait for something outside of the block: others should run first.
  bool spinning() const { return spinning_; }

  // For instructions/barrier.cpp.
  /// The warp arrives at a barrier (all its living lanes have come). `threads`: 0 for all of the block. `predicate`: lanes with a true
  /// predicate (reductions).
  void arrive(Warp& warp, std::uint32_t barrier, std::uint32_t threads, BarrierUse use, LaneMask predicate,
              const Instruction& i);
  /// Result of the last completed reduction of a barrier.
  std::uint32_t reduction(std::uint32_t barrier) const { return barriers_[barrier].result; }

  Launch& launch() { return launch_; }
  const Launch& launch() const { return launch_; }
  std::uint64_t index() const { return index_; }    ///< x + grid.x (y + grid.y z)
  ptx::Dim3 position() const { return position_; }  ///< %ctaid
  std::uint32_t thread_count() const { return threads_; }
  std::vector<std::unique_ptr<Warp>>& warps() { return warps_; }
  const std::vector<std::unique_ptr<Warp>>& warps() const { return warps_; }

  /// Shared memory of this block, reserved part included: addresses [0, shared_bytes()).
  std::byte* shared() { return shared_.data(); }
  const std::byte* shared() const { return shared_.data(); }
  std::uint32_t shared_bytes() const { return static_cast<std::uint32_t>(shared_.size()); }
  BlockChecks& checks() { return *checks_; }
  Tally& tally() { return *tally_; }
  /// Translations of global addresses, spread over the instructions of a kernel (instructions/memory_unit.cpp).
  std::array<TranslationCache, 8> translations;
  std::uint64_t translations_of = 0;  ///< AddressSpace::generation when they were made

  /// A thread of the block has exited or a warp has finished: barriers that wait for all threads may be complete.
  void lanes_exited(Warp& warp);
  /// In this turn memory was changed that others can see, a warp has ended, or the like.
  void made_progress() { progress_ = true; }
  bool progressed() const { return progress_; }
  /// Whether all warps wait for other threads.
  bool waits() const;
  /// What a barrier that is not complete waits for: "64 of 96 threads have come".
  std::string describe_barrier(std::uint32_t barrier) const;

 private:
  struct Barrier {
    std::uint32_t expected = 0;  ///< threads; 0: idle
    std::uint32_t arrived = 0;   ///< threads, counted by whole warps
    std::uint32_t arrived_warps = 0;
    std::uint32_t waiting_warps = 0;
    BarrierUse use = BarrierUse::sync;
    bool all = false;
    const Instruction* first = nullptr;  ///< of the first warp that arrived
    std::uint32_t popcount = 0;
    bool all_true = true, any_true = false;
    std::uint32_t result = 0;
  };
  void check_place(std::uint32_t barrier, const Warp& warp, const Instruction& i) const;
  bool is_complete(const Barrier& barrier) const;
  void complete(std::uint32_t barrier);
  std::uint32_t choose(std::span<const std::uint32_t> runnable);
  [[noreturn]] void report_stuck();

  Launch& launch_;
  std::uint64_t index_;
  ptx::Dim3 position_;
  std::uint32_t threads_;
  std::uint64_t random_;
  std::vector<std::byte> shared_;
  Watched<BlockChecks> checks_;
  std::array<Barrier, 16> barriers_;
  std::vector<std::unique_ptr<Warp>> warps_;
  Tally* tally_ = nullptr;
  std::uint64_t turn_ = 0;  ///< instructions after which another warp gets its turn
  std::uint32_t last_ = 0;  ///< warp that had the last turn
  bool spinning_ = false, progress_ = false;
};

}  // namespace emulator

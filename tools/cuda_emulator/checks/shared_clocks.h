#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "machine/lanes.h"

/// Happens-before among the threads of one block, for the checks of shared memory (checks/shared_shadow.h) and of global memory
/// (checks/thread_history.h).
namespace emulator {

using ThreadTime = std::uint32_t;

/// For each thread a time up to which its accesses are known: one for all lanes of a warp, and higher ones of single threads.
struct ThreadClock {
  std::array<ThreadTime, 32> warps{};
  struct Single {
    std::uint32_t thread;
    ThreadTime time;
  };
  std::vector<Single> singles;  ///< by thread, each higher than its warp's

  ThreadTime of(std::uint32_t thread) const;
  void raise(std::uint32_t thread, ThreadTime time);
  void join(const ThreadClock& other);
  /// Turns singles of all lanes of a warp into the warp's time and drops those that the warp's time covers.
  /// `threads`: of the block.
  void compact(std::uint32_t threads);
  bool empty() const;
};

class SharedClocks {
 public:
  explicit SharedClocks(std::uint32_t threads);

  static constexpr ThreadTime latest = (1u << 24) - 1;  ///< times fit 24 bits

  /// Time of what the warp does now.
  ThreadTime now(std::uint32_t warp) const { return warps_[warp].now; }
  /// For each warp, up to when all lanes of warp `me` know all its lanes.
  const ThreadTime* known(std::uint32_t me) const { return warps_[me].known.data(); }
  /// Whether what `thread` did at `time` happens before what `me` does next.
  bool before(std::uint32_t thread, ThreadTime time, std::uint32_t me) const {
    if (time <= warps_[me / warp_size].known[thread / warp_size] || thread == me) return true;
    return before_by_lane(thread, time, me);
  }

  void warp_sync(std::uint32_t warp, LaneMask lanes);
  void arrive(std::uint32_t barrier, std::uint32_t warp);
  void complete(std::uint32_t barrier, std::uint32_t waiting, bool all);
  void exited(std::uint32_t warp, LaneMask lanes);
  /// What the warp does from now on is later than what it did.
  void advance(std::uint32_t warp) { advance(warps_[warp]); }
  /// Objects are named by any number: an offset in shared memory, an address of global memory.
  /// The thread hands on what it did up to a time and what it knows.
  void release(std::uint64_t object, std::uint32_t thread, ThreadTime until);
  void acquire(std::uint64_t object, std::uint32_t thread);
  bool released(std::uint64_t object) const { return !objects_.empty() && objects_.contains(object); }

  /// Whether some warp's time is about to pass the limit; then the owner of the times calls restart and forgets them all.
  bool exhausted() const { return exhausted_; }
  void restart();

 private:
  using LaneTimes = std::array<std::array<ThreadTime, warp_size>, warp_size>;
  struct WarpClock {
    ThreadTime now = 1;
    LaneMask exists = 0, gone = 0;
    std::array<ThreadTime, 32> known{};  ///< of every warp; its own: the last sync of all lanes
    std::unique_ptr<LaneTimes> lanes;    ///< [me][other] within the warp, after partial syncs
    std::unique_ptr<std::array<ThreadClock, warp_size>> singles;  ///< what single lanes have acquired
  };
  bool before_by_lane(std::uint32_t thread, ThreadTime time, std::uint32_t me) const;
  void advance(WarpClock& warp);

  std::uint32_t threads_;
  std::vector<WarpClock> warps_;
  std::array<ThreadClock, 16> barriers_;  ///< what those that have arrived know
  ThreadClock ended_;                     ///< what warps did that have ended
  std::unordered_map<std::uint64_t, ThreadClock> objects_;
  bool exhausted_ = false;
};

}  // namespace emulator

#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "checks/shared_clocks.h"
#include "machine/access.h"
#include "machine/lanes.h"

/// Who of a block's threads wrote and read a word (or byte) last, packed (checks/shared_shadow.h, checks/thread_history.h).
namespace emulator {

/// The last write of a word (or byte): 24 bits of time, 10 of thread, 20 of PTX line, whether it was strong. A word's
/// write holds in its upper byte which bytes were ever written and which are targets of a copy under way. Time 0: never.
class LastWrite {
 public:
  LastWrite() = default;
  LastWrite(ThreadTime time, std::uint32_t thread, std::uint32_t line, bool strong)
      : bits_(time | std::uint64_t{thread} << 24 | std::uint64_t{line < 1u << 20 ? line : 0} << 34 |
              std::uint64_t{strong} << 54) {}
  ThreadTime time() const { return static_cast<ThreadTime>(bits_ & 0xff'ffff); }
  std::uint32_t thread() const { return static_cast<std::uint32_t>(bits_ >> 24 & 0x3ff); }
  std::uint32_t line() const { return static_cast<std::uint32_t>(bits_ >> 34 & 0xf'ffff); }
  bool strong() const { return bits_ >> 54 & 1; }

  /// A word all of whose bytes were written, kept as one, with no copy under way.
  bool settled() const { return bits_ >> 55 == 0x1e0; }
  /// A word kept as one, with no copy under way.
  bool whole() const { return (bits_ >> 55 & 0x1f) == 0; }

  bool split() const { return bits_ >> 55 & 1; }  ///< the word's bytes are kept one by one, at index()
  std::uint32_t index() const { return static_cast<std::uint32_t>(bits_); }
  void set_split(std::uint32_t index) { bits_ = (bits_ & upper) | std::uint64_t{1} << 55 | index; }

  std::uint32_t copying() const { return static_cast<std::uint32_t>(bits_ >> 56 & 0xf); }
  std::uint32_t written() const { return static_cast<std::uint32_t>(bits_ >> 60); }
  void set_copying(std::uint32_t mask) { bits_ |= std::uint64_t{mask} << 56; }
  void clear_copying(std::uint32_t mask) { bits_ &= ~(std::uint64_t{mask} << 56); }
  void set_written(std::uint32_t mask) { bits_ |= std::uint64_t{mask} << 60; }
  void clear_written(std::uint32_t mask) { bits_ &= ~(std::uint64_t{mask} << 60); }
  /// The last write changes, what is known of the word's bytes stays.
  void replace(LastWrite other) { bits_ = (bits_ & upper) | (other.bits_ & ~upper); }
  void forget() { bits_ &= upper; }

 private:
  static constexpr std::uint64_t upper = std::uint64_t{0xff} << 56;
  std::uint64_t bits_ = 0;
};

/// Reads since the last write: none, lanes of one warp at one time, or (in shared memory) an entry of a pool for more warps.
class LastReads {
 public:
  LastReads() = default;
  LastReads(LaneMask lanes, std::uint32_t warp, ThreadTime time, bool strong)
      : bits_(lanes | std::uint64_t{warp} << 32 | std::uint64_t{time} << 37 | std::uint64_t{strong} << 61 |
              std::uint64_t{1} << 62) {}
  static LastReads many(std::uint32_t index, bool strong) {
    LastReads reads;
    reads.bits_ = index | std::uint64_t{strong} << 61 | std::uint64_t{2} << 62;
    return reads;
  }
  /// In global memory: of a warp, it is not known which lanes.
  static LastReads by_some_lanes(std::uint32_t warp, ThreadTime time, bool strong) {
    LastReads reads(0, warp, time, strong);
    reads.bits_ |= std::uint64_t{1} << 63;
    return reads;
  }
  bool none() const { return bits_ == 0; }
  bool many() const { return bits_ >> 63; }
  bool strong() const { return bits_ >> 61 & 1; }
  LaneMask lanes() const { return static_cast<LaneMask>(bits_); }
  std::uint32_t warp() const { return static_cast<std::uint32_t>(bits_ >> 32 & 0x1f); }
  ThreadTime time() const { return static_cast<ThreadTime>(bits_ >> 37 & 0xff'ffff); }
  std::uint32_t index() const { return static_cast<std::uint32_t>(bits_); }
  /// Whether both are reads of one warp at one time, equally strong.
  bool same_turn(LastReads other) const { return bits_ >> 32 == other.bits_ >> 32 && !many(); }
  void add(LastReads other) { bits_ |= other.bits_; }

 private:
  std::uint64_t bits_ = 0;
};

/// Whether those of the lanes' reads happen before what the thread does next. `culprit`: a thread of which that is not so.
inline bool reads_before(const SharedClocks& clocks, std::uint32_t warp, LaneMask lanes, ThreadTime time,
                         std::uint32_t thread, std::uint32_t& culprit) {
  if (time <= clocks.known(thread / warp_size)[warp]) return true;
  for (; lanes; lanes &= lanes - 1) {
    culprit = warp * warp_size + static_cast<std::uint32_t>(std::countr_zero(lanes));
    if (!clocks.before(culprit, time, thread)) return false;
  }
  return true;
}

/// Two lanes of one store instruction at one place: which of the two is done first cannot be seen when their values are equal.
enum class OneStore : std::uint8_t { no, alike, different };

/// Whether `last` is the store of another lane of the same instruction to a place that the two share.
inline OneStore one_store(const Access& access, std::size_t lane, const LastWrite& last, std::uint32_t warp,
                          ThreadTime now, std::uint32_t line) {
  if (access.kind != AccessKind::store || !access.stored) return OneStore::no;
  const std::size_t other_lane = last.thread() % warp_size;
  if (last.thread() / warp_size != warp || last.time() != now || !(access.lanes >> other_lane & 1) ||
      last.line() != line)
    return OneStore::no;
  const std::uint64_t mine = access.address[lane], other = access.address[other_lane];
  const std::uint64_t from = std::max(mine, other), to = std::min(mine, other) + access.bytes;
  if (from >= to) return OneStore::no;
  const auto stored = [&](std::size_t l) { return access.stored + l * access.stored_stride; };
  return std::memcmp(stored(lane) + (from - mine), stored(other_lane) + (from - other), to - from) == 0
             ? OneStore::alike
             : OneStore::different;
}

}  // namespace emulator

#pragma once
#include <array>
#include <cstdint>

#include "checks/grid_clocks.h"
#include "checks/order.h"
#include "memory/granule.h"

/// Who wrote and who read a word of global memory last, and whether a new access is ordered after them.
///
/// Threads of one block are not judged here. Accesses of different blocks of one launch are ordered by the block's clock
/// (GridClocks), those of different operations by OperationOrder. Where the 16 bytes kept for a word cannot tell, nothing is reported.
namespace emulator {

/// One side of a WordCell: an access in 64 bits. 0: none.
struct PackedAccess {
  static constexpr int operation_bits = 24, block_bits = 20, epoch_bits = 12;
  static constexpr OperationId operation_limit =
      (1u << operation_bits) - 1;  ///< identifiers from here on are not judged (fits_history)
  static constexpr std::uint32_t last_epoch = (1u << epoch_bits) - 1;  ///< epochs stay here
  static constexpr std::uint32_t block_mask =
      (1u << block_bits) - 1;  ///< blocks that differ above it count as one

  static constexpr std::uint64_t operation_field = (std::uint64_t{1} << 24) - 1;
  static constexpr std::uint64_t block_field = std::uint64_t{block_mask} << 24;
  static constexpr std::uint64_t epoch_field = std::uint64_t{last_epoch} << 44;
  static constexpr std::uint64_t mask_field = std::uint64_t{15} << 56;  ///< bytes of the word
  static constexpr std::uint64_t strong = std::uint64_t{1}
                                          << 60;  ///< atomic, volatile, relaxed ... of device or system scope
  static constexpr std::uint64_t many =
      std::uint64_t{1} << 61;  ///< of reads: blocks that nothing orders; this is one with the highest epoch
  static constexpr std::uint64_t several = std::uint64_t{1}
                                           << 62;  ///< another block has read in the same epoch
  static constexpr std::uint64_t constant = std::uint64_t{1} << 63;  ///< of reads: ld.nc
  /// In WordCell::write: the histories of the four bytes lie in SplitWords. No access has operation 0.
  static constexpr std::uint64_t split = block_field;

  static constexpr std::uint64_t pack(OperationId operation, std::uint32_t block, std::uint32_t epoch,
                                      unsigned mask) {
    return operation | std::uint64_t{block & block_mask} << 24 | std::uint64_t{epoch} << 44 |
           std::uint64_t{mask} << 56;
  }
  static constexpr OperationId operation(std::uint64_t a) {
    return static_cast<OperationId>(a & operation_field);
  }
  static constexpr std::uint32_t block(std::uint64_t a) {
    return static_cast<std::uint32_t>(a >> 24) & block_mask;
  }
  static constexpr std::uint32_t epoch(std::uint64_t a) {
    return static_cast<std::uint32_t>(a >> 44) & last_epoch;
  }
  static constexpr unsigned mask(std::uint64_t a) { return static_cast<unsigned>(a >> 56) & 15; }
};

/// Whether the operation can be judged: its identifier is below PackedAccess::operation_limit. The first that is not is an error.
bool fits_history(OperationId operation);

/// Answers of OperationOrder for one operation, remembered. One for each thread.
class EarlierOperations {
 public:
  /// What to ask for from now on: what happens before `operation`.
  void set(OperationId operation) {
    if (operation != mine_) *this = EarlierOperations(operation);
  }
  bool before(OperationId other);
  OperationId both(OperationId other);
  /// An operation that is known to be earlier, the one asked for last; none_known when there is none.
  OperationId last() const { return known_[0]; }
  static constexpr OperationId none_known = PackedAccess::operation_limit;

  EarlierOperations() : EarlierOperations(0) {}

 private:
  explicit EarlierOperations(OperationId mine) : mine_(mine) { known_.fill(none_known); }
  OperationId mine_;
  std::array<OperationId, 8> known_;
  OperationId pair_ = 0, pair_result_ = 0;
};

/// The side that makes an access.
struct Accessor {
  std::uint64_t packed = 0;  ///< PackedAccess with all four bytes; with PackedAccess::constant for ld.nc
  bool write = false;        ///< stores and atomics
  const GridClocks* clocks = nullptr;
  GridClocks::Clock clock = nullptr;  ///< what the block knows of the others
  EarlierOperations* earlier = nullptr;
};

enum class Conflict : std::uint8_t {
  none,
  blocks,         ///< nothing orders the access after that of another block
  missing_fence,  ///< an atomic or strong write hands the memory over, but no fence stands before it
  operations,     ///< nothing orders the two operations
  read_only,      ///< ld.nc of memory that the same launch writes
};
struct Finding {
  Conflict conflict = Conflict::none;
  bool other_wrote = false;
  std::uint64_t other = 0;  ///< PackedAccess
};

/// Judges an access to the bytes of `mask` against the history of a word, and records it.
Finding judge(std::uint64_t& write, std::uint64_t& read, unsigned mask, const Accessor& me);

/// The same for a word of a granule, which other threads may use at the same time. Takes care of words whose bytes are used by
/// different blocks. Sees to rare cases; call `record`.
Finding record_slowly(Granule& granule, std::uint32_t word, unsigned mask, const Accessor& me);

inline Finding record(Granule& granule, std::uint32_t word, unsigned mask, const Accessor& me) {
  using P = PackedAccess;
  WordCell& cell = granule.cells[word];
  const std::uint64_t w = cell.write.load(std::memory_order_relaxed),
                      r = cell.read.load(std::memory_order_relaxed);
  const std::uint64_t mine = (me.packed & ~P::mask_field) | std::uint64_t{mask} << 56;
  constexpr std::uint64_t who = P::operation_field | P::block_field;
  const OperationId earlier = me.earlier->last();
  if (!me.write) {
    if ((w == 0 || P::operation(w) == earlier || ((w ^ mine) & who) == 0) &&
        !((mine & P::constant) && P::operation(w) == P::operation(mine))) {
      if (r == mine) return {};
      if (r == 0 || P::operation(r) == earlier ||
          (((r ^ mine) & (who | P::many | P::constant)) == 0 && !(P::mask(r) & ~mask))) {
        cell.read.store(mine, std::memory_order_relaxed);
        return {};
      }
      // One of many readers of a word that all of them read as a whole.
      if ((r & P::many) && ((r ^ mine) & (P::operation_field | P::mask_field)) == 0 &&
          !(mine & ~r & (P::strong | P::constant)) &&
          (P::epoch(r) > P::epoch(mine) || (P::epoch(r) == P::epoch(mine) && (r & P::several))))
        return {};
    }
  } else if ((w == 0 || P::operation(w) == earlier || (((w ^ mine) & who) == 0 && !(P::mask(w) & ~mask))) &&
             (r == 0 || P::operation(r) == earlier ||
              (((r ^ mine) & (who | P::many | P::constant)) == 0 && !(P::mask(r) & ~mask)))) {
    if (w != mine) cell.write.store(mine, std::memory_order_relaxed);
    if (r != 0) cell.read.store(0, std::memory_order_relaxed);
    return {};
  }
  return record_slowly(granule, word, mask, me);
}

}  // namespace emulator

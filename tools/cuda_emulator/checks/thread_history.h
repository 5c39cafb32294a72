#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "checks/last_access.h"
#include "checks/shared_clocks.h"
#include "machine/access.h"

/// Who of a block's threads wrote and read global memory last, and whether a new access of the block is ordered after that.
///
/// The order is that of shared memory (SharedClocks). Memory is kept in lines of 128 bytes that the block has used. Mostly a warp
/// uses a line as a whole, each lane its part: two such writes and two such reads are kept for a line in the form "words w, by one warp
/// at one time, byte b by lane b / bytes + first" (Line). Reads of one warp at one time that come in several such forms become "by
/// some lanes of the warp", which no thread of that warp is judged against. A line that threads use otherwise is kept word by word, or byte by byte.
/// Of reads that nothing orders, two of different warps are kept: a later write of any thread meets one that is not its warp's own.
namespace emulator {

/// A thread of the same block has used the bytes, and nothing orders the access after that.
struct ThreadConflict {
  std::uint64_t address, bytes;
  int lane;             ///< that makes the access now
  std::uint32_t other;  ///< thread of the block
  bool other_wrote;
  std::uint32_t line;  ///< PTX line of the other write; 0: unknown
  bool one_store;      ///< both are lanes of one store instruction, with different values
};

class ThreadHistory {
 public:
  explicit ThreadHistory(const SharedClocks& clocks);
  ~ThreadHistory();

  /// One instruction of a warp, whose bytes follow in parts.
  struct Turn {
    const Access& access;
    std::uint32_t warp, line;  ///< `line` of the PTX text
    bool write, strong;        ///< atomics are both
  };
  /// The lanes, whose bytes together are [begin, end), make their access. `bytes`: of each lane, from its address on; lanes at one place
  /// may come together, others lie side by side in order. Adds what conflicts.
  void record(const Turn& turn, std::uint64_t begin, std::uint64_t end, LaneMask lanes,
              std::vector<ThreadConflict>& conflicts);
  /// The times of the clocks start anew.
  void forget();

 private:
  static constexpr std::uint64_t line_bytes = 128;
  static constexpr std::uint32_t whole = 0;  ///< Line::cells of a line whose slots tell all
  /// Slots 0 and 1 are writes, 2 and 3 reads; of a free slot no words are set.
  struct alignas(64) Line {
    std::uint64_t key = 0;
    std::array<std::uint64_t, 4> slots{};
    std::array<std::uint32_t, 4> words{};
    std::uint32_t cells = whole;  ///< where in cells_ the line is kept, plus one
    std::uint32_t unit = 4;       ///< bytes of a cell
  };
  struct Cell {
    LastWrite write;
    std::array<LastReads, 2> reads;
  };
  struct Table;
  using Slot = std::uint64_t;

  Line& find(std::uint64_t number);
  bool before(Slot old, Slot mine) const;
  bool write_slots(Line& line, Slot mine, std::uint32_t words, bool strong) const;
  bool reads_after_writes(const Line& line, Slot mine, std::uint32_t words) const;
  bool read_slots(Line& line, Slot mine, std::uint32_t words) const;
  void expand(Line& line, std::uint32_t unit);
  void refine(Line& line);
  void record_cells(const Turn& turn, Line& line, std::uint64_t base, std::uint64_t begin, std::uint64_t end,
                    LaneMask lanes, bool together, std::vector<ThreadConflict>& conflicts);
  void write_cell(const Turn& turn, Cell& cell, std::uint32_t lane, std::uint64_t address,
                  std::uint64_t bytes, std::vector<ThreadConflict>& conflicts) const;
  void read_cell(const Turn& turn, Cell& cell, LaneMask lanes, std::uint64_t address, std::uint64_t bytes,
                 std::vector<ThreadConflict>& conflicts) const;
  bool some_before(LastReads reads, std::uint32_t me, std::uint32_t& culprit) const;
  bool ordered(LastReads old, std::uint32_t warp, LaneMask lanes) const;
  void add_reads(Cell& cell, LastReads mine) const;

  const SharedClocks& clocks_;
  std::unique_ptr<Table> table_;
  std::vector<Cell> cells_;
};

}  // namespace emulator

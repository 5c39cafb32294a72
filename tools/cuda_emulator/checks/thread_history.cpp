#include "checks/thread_history.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "machine/thread_object.h"

namespace emulator {
namespace {

/// What a slot says of its words: 24 bits of time, 5 of the warp, 8 of the lane of byte 0 (128 more than it is), 3 of the binary
/// logarithm of the bytes of a lane, whether the access was strong; then for reads by several lanes of one place a bit and the last lane
/// in 5 bits, for writes 20 bits of the PTX line; of reads a bit that the lanes are unknown.
constexpr int warp_at = 24, first_at = 29, shift_at = 37, strong_at = 40, together_at = 41, last_at = 42,
              line_at = 42, unknown_at = 62;
constexpr std::uint64_t strong_bit = std::uint64_t{1} << strong_at;
constexpr std::uint64_t together_bit = std::uint64_t{1} << together_at;
constexpr std::uint64_t threads_field = (strong_bit - 1) & ~((std::uint64_t{1} << warp_at) - 1);
constexpr std::uint64_t unknown_bit = std::uint64_t{1} << unknown_at;
constexpr int one_lane = 7;  ///< as a logarithm: all bytes of the line

ThreadTime time_of(std::uint64_t slot) { return static_cast<ThreadTime>(slot & 0xff'ffff); }
std::uint32_t warp_of(std::uint64_t slot) { return static_cast<std::uint32_t>(slot >> warp_at & 31); }
bool strong(std::uint64_t slot) { return slot & strong_bit; }

/// For reads of one warp at one time that no other form holds: which lanes they were is forgotten.
std::uint64_t by_some_lanes(std::uint64_t slot) {
  return (slot & (strong_bit | 31ull << warp_at | 0xff'ffff)) | together_bit | unknown_bit;
}

/// Lanes that used a byte of the line.
LaneMask lanes_of(std::uint64_t slot, std::uint32_t byte) {
  const int first =
      static_cast<int>(slot >> first_at & 255) - 128 + static_cast<int>(byte >> (slot >> shift_at & 7));
  if (!(slot & together_bit)) return LaneMask{1} << first;
  const int last = static_cast<int>(slot >> last_at & 31);
  return (all_lanes >> (31 - last)) & (all_lanes << first);
}

/// Of lanes that write one place together: whether one of them can stand for all, as atomics or with one value.
bool one_writer(const Access& access, LaneMask lanes) {
  if (access.kind == AccessKind::atomic) return true;
  if (!access.stored) return false;
  const auto stored = [&](int lane) {
    return access.stored + static_cast<std::size_t>(lane) * access.stored_stride;
  };
  const std::byte* const value = stored(std::countr_zero(lanes));
  bool alike = true;
  for_lanes(lanes, [&](int lane) { alike = alike && std::memcmp(value, stored(lane), access.bytes) == 0; });
  return alike;
}

/// Words of a line between two of its bytes: those that begin at or after the first and end at or before the last, when both are
/// rounded down to words.
std::uint32_t words_between(std::uint64_t from, std::uint64_t to) {
  const auto below = [](std::uint64_t word) {
    return (std::uint64_t{1} << std::min<std::uint64_t>(word, 32)) - 1;
  };
  return static_cast<std::uint32_t>(below(to / 4) & ~below(from / 4));
}

}  // namespace

/// Lines by number: open addressing, at most half full. Tables of blocks that have ended serve others of the host thread: an entry
/// counts only if its key holds the table's present stamp.
struct ThreadHistory::Table {
  std::vector<Line> lines = std::vector<Line>(64);
  std::uint32_t count = 0, stamp = 1;
  static constexpr int stamp_at = 41;  ///< above the numbers of lines, of 47-bit addresses
  static constexpr std::size_t kept_lines = 1 << 15, kept_tables = 8;

  std::size_t place(std::uint64_t number) const {
    // Eight lines that follow each other stay together.
    const std::uint64_t group = (number >> 3) * 0x9e37'79b9'7f4a'7c15;
    return ((group >> 32) << 3 | (number & 7)) & (lines.size() - 1);
  }
  void clear() {
    count = 0;
    if (++stamp < 1u << (64 - stamp_at)) return;
    std::ranges::fill(lines, Line{});
    stamp = 1;
  }
  void grow() {
    std::vector<Line> old(2 * lines.size());
    old.swap(lines);
    for (const Line& line : old) {
      if (line.key >> stamp_at != stamp) continue;
      std::size_t at = place(line.key & ((std::uint64_t{1} << stamp_at) - 1));
      while (lines[at].key >> stamp_at == stamp) at = (at + 1) & (lines.size() - 1);
      lines[at] = line;
    }
  }
  static std::vector<std::unique_ptr<Table>>& spare() {
    return ThreadObject<std::vector<std::unique_ptr<Table>>>::get();
  }
};

ThreadHistory::ThreadHistory(const SharedClocks& clocks) : clocks_(clocks) {}

ThreadHistory::~ThreadHistory() {
  auto& spare = Table::spare();
  if (!table_ || table_->lines.size() > Table::kept_lines || spare.size() >= Table::kept_tables) return;
  table_->clear();
  spare.push_back(std::move(table_));
}

void ThreadHistory::forget() {
  if (table_) table_->clear();
  cells_.clear();
}

ThreadHistory::Line& ThreadHistory::find(std::uint64_t number) {
  if (!table_) [[unlikely]] {
    auto& spare = Table::spare();
    if (spare.empty()) {
      table_ = std::make_unique<Table>();
    } else {
      table_ = std::move(spare.back());
      spare.pop_back();
    }
  }
  Table& t = *table_;
  const std::uint64_t key = number | std::uint64_t{t.stamp} << Table::stamp_at;
  std::size_t at = t.place(number);
  for (; t.lines[at].key >> Table::stamp_at == t.stamp; at = (at + 1) & (t.lines.size() - 1))
    if (t.lines[at].key == key) return t.lines[at];
  if (2 * ++t.count > t.lines.size()) {
    t.grow();
    at = t.place(number);
    while (t.lines[at].key >> Table::stamp_at == t.stamp) at = (at + 1) & (t.lines.size() - 1);
  }
  t.lines[at] = Line{};
  t.lines[at].key = key;
  return t.lines[at];
}

/// Whether what the slot says happens before the new access, as far as that is clear for whole warps and for the same threads.
bool ThreadHistory::before(Slot old, Slot mine) const {
  return time_of(old) <= clocks_.known(warp_of(mine))[warp_of(old)] ||
         (((old ^ mine) & threads_field) == 0 && !((old | mine) & together_bit));
}

/// Returns whether the slots can hold the write, and nothing speaks against it.
bool ThreadHistory::write_slots(Line& line, Slot mine, std::uint32_t words, bool is_strong) const {
  int target = -1;
  for (int s = 0; s < 4; ++s) {
    const Slot old = line.slots[s];
    const std::uint32_t common = line.words[s] & words;
    if (common && !before(old, mine) && !(is_strong && strong(old)) &&
        !((old & unknown_bit) && s >= 2 && warp_of(old) == warp_of(mine)))
      return false;
    if (s >= 2) continue;
    // A plain write that nobody has been told of yet must stay to be judged.
    if (common && is_strong && !strong(old) && time_of(old) == time_of(mine)) return false;
    if (old == mine || (target < 0 && !(line.words[s] & ~words))) target = s;
  }
  if (target < 0) return false;
  for (std::uint32_t& w : line.words) w &= ~words;
  line.slots[target] = mine;
  line.words[target] |= words;
  return true;
}

/// Whether the line's writes of the words happen before the read, as far as that is clear.
bool ThreadHistory::reads_after_writes(const Line& line, Slot mine, std::uint32_t words) const {
  for (int s = 0; s < 2; ++s)
    if ((line.words[s] & words) && !before(line.slots[s], mine) && !(strong(mine) && strong(line.slots[s])))
      return false;
  return true;
}

bool ThreadHistory::read_slots(Line& line, Slot mine, std::uint32_t words) const {
  if (!reads_after_writes(line, mine, words)) return false;
  const Slot by_some = by_some_lanes(mine);
  for (int s = 2; s < 4; ++s)
    if (line.words[s] && (line.slots[s] == mine || line.slots[s] == by_some)) {
      line.words[s] |= words;
      return true;
    }
  std::array<std::uint32_t, 2> rest{line.words[2], line.words[3]};
  for (std::size_t k = 0; k < 2; ++k) {
    const Slot old = line.slots[2 + k];
    // A strong read does not stand for a weak one.
    if (before(old, mine) && (strong(old) || !strong(mine))) rest[k] &= ~words;
  }
  const int target = !rest[0] ? 2 : !rest[1] ? 3 : -1;
  if (target < 0)
    for (std::size_t k = 0; k < 2; ++k)
      if (by_some_lanes(line.slots[2 + k]) == by_some) {
        line.slots[2 + k] = by_some;
        line.words[2 + k] |= words;
        if (by_some_lanes(line.slots[3 - k]) == by_some)
          line.words[2 + k] |= std::exchange(line.words[3 - k], 0);
        return true;
      }
  // Two readers are enough, if they are of two warps and tell as much.
  if (target < 0 && (warp_of(line.slots[2]) == warp_of(line.slots[3]) ||
                     (!strong(mine) && strong(line.slots[2] | line.slots[3]))))
    return false;
  line.words[2] = rest[0];
  line.words[3] = rest[1];
  if (target < 0) return true;
  line.slots[static_cast<std::size_t>(target)] = mine;
  line.words[static_cast<std::size_t>(target)] = words;
  return true;
}

/// From slots to cells of `unit` bytes.
void ThreadHistory::expand(Line& line, std::uint32_t unit) {
  for (int s = 0; s < 4; ++s)
    if (line.words[s] && !(line.slots[s] & together_bit) && (line.slots[s] >> shift_at & 7) < 2) unit = 1;
  const std::size_t at = cells_.size();
  cells_.resize(at + line_bytes / unit);
  for (int s = 0; s < 4; ++s) {
    const Slot slot = line.slots[s];
    for (std::uint32_t byte = 0; byte < line_bytes; byte += unit) {
      if (!(line.words[s] >> byte / 4 & 1)) continue;
      Cell& cell = cells_[at + byte / unit];
      if (s >= 2 && (slot & unknown_bit)) {
        cell.reads[cell.reads[0].none() ? 0 : 1] =
            LastReads::by_some_lanes(warp_of(slot), time_of(slot), strong(slot));
        continue;
      }
      const LaneMask lanes = lanes_of(slot, byte);
      if (s < 2)
        cell.write = LastWrite(
            time_of(slot), warp_of(slot) * warp_size + static_cast<std::uint32_t>(std::countr_zero(lanes)),
            static_cast<std::uint32_t>(slot >> line_at & 0xf'ffff), strong(slot));
      else
        cell.reads[cell.reads[0].none() ? 0 : 1] =
            LastReads(lanes, warp_of(slot), time_of(slot), strong(slot));
    }
  }
  line.words = {};
  line.cells = static_cast<std::uint32_t>(at + 1);
  line.unit = unit;
}

/// From cells of words to cells of bytes.
void ThreadHistory::refine(Line& line) {
  const std::size_t from = line.cells - 1, at = cells_.size();
  cells_.resize(at + line_bytes);
  for (std::size_t byte = 0; byte < line_bytes; ++byte) cells_[at + byte] = cells_[from + byte / 4];
  line.cells = static_cast<std::uint32_t>(at + 1);
  line.unit = 1;
}

void ThreadHistory::record(const Turn& turn, std::uint64_t begin, std::uint64_t end, LaneMask lanes,
                           std::vector<ThreadConflict>& conflicts) {
  const int first = std::countr_zero(lanes);
  const std::uint32_t count = static_cast<std::uint32_t>(std::popcount(lanes));
  const LaneMask shifted = lanes >> first;
  const std::uint32_t bytes = turn.access.bytes;
  const bool contiguous = (shifted & (shifted + 1)) == 0;
  const bool words_only = (begin | end) % 4 == 0;
  const bool together = count > 1 && end - begin == bytes;
  bool regular = words_only && contiguous && std::has_single_bit(bytes) && bytes <= 16 &&
                 (count == 1 || (together ? !turn.write : std::uint64_t{count} * bytes == end - begin));
  LaneMask writers = lanes;
  if (together && turn.write && one_writer(turn.access, lanes)) {
    // A leader, which may go on to read the result, is seldom the last lane.
    writers = LaneMask{1} << (31 - std::countl_zero(lanes));
    regular = words_only;
  }
  const std::uint64_t shift =
      count == 1 || together ? one_lane : static_cast<std::uint64_t>(std::countr_zero(bytes));
  const ThreadTime now = clocks_.now(turn.warp);
  for (std::uint64_t base = begin / line_bytes * line_bytes; base < end; base += line_bytes) {
    Line& line = find(base / line_bytes);
    const std::uint64_t from = std::max(begin, base), to = std::min(end, base + line_bytes);
    if (line.cells == whole && regular) {
      const std::uint32_t words = words_between(from - base, to - base);
      const std::int64_t lane_0 =
          std::countr_zero(writers) -
          (shift == one_lane ? 0
                             : static_cast<std::int64_t>(begin - base) / static_cast<std::int64_t>(bytes));
      Slot mine = now | std::uint64_t{turn.warp} << warp_at |
                  static_cast<std::uint64_t>(lane_0 + 128) << first_at | shift << shift_at |
                  std::uint64_t{turn.strong} << strong_at;
      if (turn.write)
        mine |= std::uint64_t{turn.line < 1u << 20 ? turn.line : 0} << line_at;
      else if (together)
        mine |= together_bit | static_cast<std::uint64_t>(31 - std::countl_zero(lanes)) << last_at;
      if (turn.write ? write_slots(line, mine, words, turn.strong) : read_slots(line, mine, words)) continue;
    } else if (line.cells == whole && !turn.write) {
      // Of other reads the words that they cover are kept, without the lanes.
      const Slot mine =
          by_some_lanes(now | std::uint64_t{turn.warp} << warp_at | std::uint64_t{turn.strong} << strong_at);
      const std::uint32_t touched = words_between(from - base, to - base + 3),
                          covered = words_between(from - base + 3, to - base);
      if (reads_after_writes(line, mine, touched) && read_slots(line, mine, covered)) continue;
    }
    if (line.cells == whole)
      expand(line, words_only && bytes % 4 == 0 ? 4 : 1);
    else if (line.unit == 4 && !(words_only && bytes % 4 == 0))
      refine(line);
    record_cells(turn, line, base, from, to, turn.write ? writers : lanes, together, conflicts);
  }
}

void ThreadHistory::record_cells(const Turn& turn, Line& line, std::uint64_t base, std::uint64_t begin,
                                 std::uint64_t end, LaneMask lanes, bool together,
                                 std::vector<ThreadConflict>& conflicts) {
  Cell* const cells = cells_.data() + (line.cells - 1);
  const auto touch = [&](std::uint64_t from, std::uint64_t to, LaneMask by) {
    for (std::uint64_t at = from; at < to; at += line.unit) {
      Cell& cell = cells[(at - base) / line.unit];
      if (!turn.write)
        read_cell(turn, cell, by, at, line.unit, conflicts);
      else
        for_lanes(by, [&](int lane) {
          write_cell(turn, cell, static_cast<std::uint32_t>(lane), at, line.unit, conflicts);
        });
    }
  };
  if (together || std::has_single_bit(lanes)) return touch(begin, end, lanes);
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = turn.access.address[static_cast<std::size_t>(lane)];
    touch(std::max(begin, address), std::min(end, address + turn.access.bytes), LaneMask{1} << lane);
  });
}

void ThreadHistory::write_cell(const Turn& turn, Cell& cell, std::uint32_t lane, std::uint64_t address,
                               std::uint64_t bytes, std::vector<ThreadConflict>& conflicts) const {
  const std::uint32_t me = turn.warp * warp_size + lane;
  const ThreadTime now = clocks_.now(turn.warp);
  const LastWrite last = cell.write;
  if (!(turn.strong && last.strong()) && !clocks_.before(last.thread(), last.time(), me)) {
    const OneStore one = one_store(turn.access, lane, last, turn.warp, now, turn.line);
    if (one != OneStore::alike)
      conflicts.push_back({address, bytes, static_cast<int>(lane), last.thread(), true, last.line(),
                           one == OneStore::different});
  }
  for (const LastReads& reads : cell.reads) {
    std::uint32_t culprit = 0;
    if (reads.none() || (turn.strong && reads.strong())) continue;
    if (reads.many() ? !some_before(reads, me, culprit)
                     : !reads_before(clocks_, reads.warp(), reads.lanes(), reads.time(), me, culprit)) {
      conflicts.push_back({address, bytes, static_cast<int>(lane), culprit, false, 0, false});
      break;
    }
  }
  // A plain write of the thread that nobody has been told of yet stays to be judged with its strong one.
  const bool plain_before = last.time() == now && last.thread() == me && !last.strong();
  cell.write = LastWrite(now, me, turn.line, turn.strong && !plain_before);
  cell.reads = {};
}

void ThreadHistory::read_cell(const Turn& turn, Cell& cell, LaneMask lanes, std::uint64_t address,
                              std::uint64_t bytes, std::vector<ThreadConflict>& conflicts) const {
  const LastWrite last = cell.write;
  if (last.time() > clocks_.known(turn.warp)[last.thread() / warp_size] && !(turn.strong && last.strong()))
    for_lanes(lanes, [&](int lane) {
      if (!clocks_.before(last.thread(), last.time(),
                          turn.warp * warp_size + static_cast<std::uint32_t>(lane)))
        conflicts.push_back({address, bytes, lane, last.thread(), true, last.line(), false});
    });
  add_reads(cell, LastReads(lanes, turn.warp, clocks_.now(turn.warp), turn.strong));
}

/// Of reads by unknown lanes: whether they may have been the thread's own, or those of a thread that the thread knows.
bool ThreadHistory::some_before(LastReads reads, std::uint32_t me, std::uint32_t& culprit) const {
  culprit = reads.warp() * warp_size;
  if (reads.warp() == me / warp_size) return true;
  for (std::uint32_t lane = 0; lane < warp_size; ++lane)
    if (clocks_.before(culprit + lane, reads.time(), me)) return true;
  return false;
}

/// Whether the old reads happen before what each of the lanes does next.
bool ThreadHistory::ordered(LastReads old, std::uint32_t warp, LaneMask lanes) const {
  if (old.time() <= clocks_.known(warp)[old.warp()]) return true;
  if (old.many()) return false;
  for (std::uint32_t culprit; lanes; lanes &= lanes - 1)
    if (!reads_before(clocks_, old.warp(), old.lanes(), old.time(),
                      warp * warp_size + static_cast<std::uint32_t>(std::countr_zero(lanes)), culprit))
      return false;
  return true;
}

void ThreadHistory::add_reads(Cell& cell, LastReads mine) const {
  for (LastReads& reads : cell.reads)
    if (reads.same_turn(mine)) return reads.add(mine);
  for (LastReads& reads : cell.reads)
    if (!reads.none() && (reads.strong() || !mine.strong()) && ordered(reads, mine.warp(), mine.lanes()))
      reads = {};
  for (LastReads& reads : cell.reads)
    if (reads.none()) {
      reads = mine;
      return;
    }
  // Weak reads and those of another warp tell more.
  auto& [first, second] = cell.reads;
  if (!mine.strong() && first.strong())
    first = mine;
  else if ((!mine.strong() && second.strong()) || first.warp() == second.warp())
    second = mine;
}

}  // namespace emulator

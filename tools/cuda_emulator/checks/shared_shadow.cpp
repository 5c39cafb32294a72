#include "checks/shared_shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "checks/report.h"
#include "checks/shared_clocks.h"
#include "machine/block.h"
#include "machine/launch.h"

namespace emulator {
namespace {

constexpr std::uint32_t whole_word = 0xf;  ///< mask of a word's bytes

/// The last write of a word (or byte): 24 bits of time, 10 of thread, 20 of PTX line, whether it was strong. A word's
/// write holds in its upper byte which bytes were ever written and which are targets of a copy under way. Time 0: never.
class Write {
 public:
  Write() = default;
  Write(ThreadTime time, std::uint32_t thread, std::uint32_t line, bool strong)
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
  void replace(Write other) { bits_ = (bits_ & upper) | (other.bits_ & ~upper); }
  void forget() { bits_ &= upper; }

 private:
  static constexpr std::uint64_t upper = std::uint64_t{0xff} << 56;
  std::uint64_t bits_ = 0;
};

/// The reads since the last write: none, lanes of one warp at one time, or an entry of a pool for more warps.
class Reads {
 public:
  Reads() = default;
  Reads(LaneMask lanes, std::uint32_t warp, ThreadTime time, bool strong)
      : bits_(lanes | std::uint64_t{warp} << 32 | std::uint64_t{time} << 37 | std::uint64_t{strong} << 61 |
              std::uint64_t{1} << 62) {}
  static Reads many(std::uint32_t index, bool strong) {
    Reads reads;
    reads.bits_ = index | std::uint64_t{strong} << 61 | std::uint64_t{2} << 62;
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
  bool same_turn(Reads other) const { return bits_ >> 32 == other.bits_ >> 32 && !many(); }
  void add(Reads other) { bits_ |= other.bits_; }

 private:
  std::uint64_t bits_ = 0;
};

struct Cell {
  Write write;
  Reads reads;
};

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::load:
      return "read";
    case AccessKind::store:
      return "write";
    case AccessKind::atomic:
      return "atomic access";
  }
  return "";
}

/// "PTX line 57, 'st.shared.u32 [%r1], %r2'" of a statement of the kernel or of a function it calls.
std::string describe_line(const Function& function, std::uint32_t line) {
  std::string text = "PTX line " + std::to_string(line);
  if (!function.module) return text;
  for (const ptx::Function& f : function.module->functions)
    for (const ptx::Statement& s : f.statements)
      if (s.place.line == line) {
        if (const std::string source = describe_source(*function.module, s.place); !source.empty())
          text = source + ", " + text;
        return text + ", '" + s.text + "'";
      }
  return text;
}

}  // namespace

struct SharedShadow::State {
  State(std::uint32_t size, std::uint32_t threads)
      : clocks(threads),
        cells((size - reserved_shared + 3) / 4),
        warps((threads + warp_size - 1) / warp_size),
        fenced(warps) {}

  SharedClocks clocks;
  std::vector<Cell> cells;  ///< by word, from the end of the reserved part
  std::uint32_t warps;
  std::vector<std::array<Cell, 4>> split_words;  ///< their bytes
  std::vector<std::uint32_t> free_split_words;
  /// For each set of readers of several warps: the time and the lanes of each warp's last reads.
  struct WarpReads {
    ThreadTime time = 0;
    LaneMask lanes = 0;
  };
  std::vector<WarpReads> readers;  ///< `warps` entries a set
  std::vector<std::uint32_t> free_readers;
  bool carried_unwritten = false;  ///< the access that is judged takes bytes never written along
  std::vector<LaneMask> fenced;    ///< by warp: lanes with a fence after their last plain write

  /// One lane's access while it is judged.
  struct Turn {
    Warp& warp;
    const Instruction& instruction;
    const Access& access;
    int lane;
    std::uint32_t thread;
    ThreadTime now;
    bool reads, writes, strong;
  };

  /// Whether all those reads happen before what the turn's thread does next. `culprit`: a thread of which that is not so.
  bool ordered(const Reads reads, std::uint32_t thread, std::uint32_t& culprit) const {
    const auto lanes_ordered = [&](std::uint32_t warp, LaneMask lanes, ThreadTime time) {
      if (time <= clocks.known(thread / warp_size)[warp]) return true;
      for (; lanes; lanes &= lanes - 1) {
        culprit = warp * warp_size + static_cast<std::uint32_t>(std::countr_zero(lanes));
        if (!clocks.before(culprit, time, thread)) return false;
      }
      return true;
    };
    if (reads.none()) return true;
    if (!reads.many()) return lanes_ordered(reads.warp(), reads.lanes(), reads.time());
    for (std::uint32_t w = 0; w < warps; ++w) {
      const WarpReads& of_warp = readers[reads.index() + w];
      if (of_warp.lanes && !lanes_ordered(w, of_warp.lanes, of_warp.time)) return false;
    }
    return true;
  }

  void forget_reads(Reads& reads) {
    if (reads.many()) free_readers.push_back(reads.index());
    reads = Reads();
  }

  void add_read(Reads& reads, const Turn& turn) {
    const Reads mine(1u << turn.lane, turn.warp.index(), turn.now, turn.strong);
    if (reads.same_turn(mine)) return reads.add(mine);
    if (reads.many() && reads.strong() == turn.strong)
      if (WarpReads& of_warp = readers[reads.index() + turn.warp.index()]; of_warp.time == turn.now) {
        of_warp.lanes |= mine.lanes();
        return;
      }
    std::uint32_t culprit;
    if (ordered(reads, turn.thread, culprit)) {
      forget_reads(reads);
      reads = mine;
      return;
    }
    // Sets of weak and strong reads keep the weak ones: a strong write races with these alone.
    if (reads.strong() != turn.strong) {
      if (turn.strong) return;
      forget_reads(reads);
      reads = mine;
      return;
    }
    if (!reads.many()) {
      std::uint32_t index;
      if (free_readers.empty()) {
        index = static_cast<std::uint32_t>(readers.size());
        readers.resize(readers.size() + warps);
      } else {
        index = free_readers.back();
        free_readers.pop_back();
        std::fill_n(readers.begin() + index, warps, WarpReads());
      }
      readers[index + reads.warp()] = {reads.time(), reads.lanes()};
      reads = Reads::many(index, turn.strong);
    }
    WarpReads& of_warp = readers[reads.index() + turn.warp.index()];
    if (of_warp.time != turn.now) of_warp = {turn.now, 0};
    of_warp.lanes |= 1u << turn.lane;
  }

  /// Judges and records one lane's access to a word or to one byte of a split word. `at`: offset in shared memory;
  /// `bytes`: 4 or 1.
  void touch(Cell& cell, const Turn& turn, std::uint32_t at, std::uint32_t bytes,
             std::uint32_t instruction_line) {
    const Write last = cell.write;
    if (!clocks.before(last.thread(), last.time(), turn.thread) && !(turn.strong && last.strong()))
        [[unlikely]]
      report_race(turn, at, bytes, last.thread(), &last);
    if (turn.writes) {
      std::uint32_t culprit = 0;
      if (!ordered(cell.reads, turn.thread, culprit) && !(turn.strong && cell.reads.strong())) [[unlikely]]
        report_race(turn, at, bytes, culprit, nullptr);
      if (!cell.reads.none()) forget_reads(cell.reads);
      // A plain write of the thread that nobody has been told of yet stays to be judged with its strong one.
      const bool plain_before = !last.strong() && last.thread() == turn.thread && last.time() == turn.now;
      cell.write.replace(Write(turn.now, turn.thread, instruction_line, turn.strong && !plain_before));
    } else {
      add_read(cell.reads, turn);
    }
  }

  /// The usual case of touch_word, and nothing else: a plain read or write of a whole word whose last accesses all lanes of
  /// the warp know, or are the thread's own. Returns whether it was that case.
  bool touch_known(Cell& cell, const ThreadTime* known, std::uint32_t thread, bool writes, Reads read,
                   Write write) const {
    const Write last = cell.write;
    if (!(writes ? last.whole() : last.settled())) return false;
    if (last.time() > known[last.thread() / warp_size] && last.thread() != thread) return false;
    const Reads before = cell.reads;
    if (!writes && before.same_turn(read)) {
      cell.reads.add(read);
      return true;
    }
    if (before.many()) return false;
    if (!before.none() && before.time() > known[before.warp()] &&
        (before.warp() != thread / warp_size || before.lanes() != 1u << thread % warp_size))
      return false;
    if (writes) {
      cell.write.replace(write);
      cell.write.set_written(whole_word);
      cell.reads = Reads();
    } else {
      cell.reads = read;
    }
    return true;
  }

  /// An access to some bytes of a word.
  void touch_word(const Turn& turn, std::uint32_t word, std::uint32_t mask) {
    Cell& cell = cells[word];
    const std::uint32_t at = reserved_shared + word * 4, line = turn.instruction.statement->place.line;
    if (cell.write.copying() & mask) [[unlikely]] {
      report_copying(turn, at, cell);
    } else if (turn.reads && !turn.access.replaces && (cell.write.written() & mask) != mask) [[unlikely]] {
      if (turn.access.carries)
        carried_unwritten = true;
      else
        report_unwritten(turn, at, mask & ~cell.write.written());
    }
    if (turn.writes && !turn.access.copy) cell.write.set_written(mask);
    if (mask == whole_word && !cell.write.split()) [[likely]]
      return touch(cell, turn, at, 4, line);

    if (!cell.write.split()) split(cell);
    const std::uint32_t index = cell.write.index();
    for (std::uint32_t k = 0; k < 4; ++k)
      if (mask >> k & 1) touch(split_words[index][k], turn, at + k, 1, line);
    if (mask == whole_word && turn.writes) {
      // One thread's write covers the word: its bytes are alike again.
      cell.write.replace(Write(turn.now, turn.thread, line, turn.strong));
      cell.reads = Reads();
      free_split_words.push_back(index);
    }
  }

  void split(Cell& cell) {
    std::uint32_t index;
    if (free_split_words.empty()) {
      index = static_cast<std::uint32_t>(split_words.size());
      split_words.emplace_back();
    } else {
      index = free_split_words.back();
      free_split_words.pop_back();
    }
    for (Cell& byte : split_words[index]) {
      byte = Cell();
      byte.write.replace(cell.write);
      byte.reads = cell.reads;
      if (cell.reads.many()) {
        const auto copy = static_cast<std::uint32_t>(readers.size());
        readers.resize(readers.size() + warps);
        std::copy_n(readers.begin() + cell.reads.index(), warps, readers.begin() + copy);
        byte.reads = Reads::many(copy, cell.reads.strong());
      }
    }
    forget_reads(cell.reads);
    cell.write.set_split(index);
  }

  /// Times start anew: what was ever written stays known, earlier accesses can no longer race.
  void restart() {
    for (Cell& cell : cells) {
      cell.write.forget();
      cell.reads = Reads();
    }
    split_words.clear();
    free_split_words.clear();
    readers.clear();
    free_readers.clear();
    clocks.restart();
  }

  std::string describe_thread(const Turn& turn, std::uint32_t thread) const {
    const ptx::Dim3& size = turn.warp.block().launch().shape().block;
    return "thread (" + std::to_string(thread % size.x) + "," + std::to_string(thread / size.x % size.y) +
           "," + std::to_string(thread / size.x / size.y) + ")";
  }

  static std::string describe_place(std::uint32_t at, std::uint32_t bytes) {
    return "shared memory at offset " + std::to_string(at - reserved_shared) + " (" + std::to_string(bytes) +
           (bytes == 1 ? " byte)" : " bytes)");
  }

  /// Whether the write leaves in place what the write before put there.
  static bool writes_equal(const Turn& turn, const Write& last) {
    const Access& access = turn.access;
    if (access.kind != AccessKind::store || !access.stored) return false;
    const auto value_of = [&](std::size_t lane) { return access.stored + lane * access.stored_stride; };
    const auto mine = static_cast<std::size_t>(turn.lane);
    const std::uint64_t begin = access.address[mine], end = begin + access.bytes;
    if (std::memcmp(value_of(mine), turn.warp.block().shared() + begin, access.bytes) == 0) return true;
    // A lane of this very instruction has not stored yet.
    const std::size_t lane = last.thread() % warp_size;
    if (last.thread() / warp_size != turn.warp.index() || last.time() != turn.now ||
        !(access.lanes >> lane & 1) || last.line() != turn.instruction.statement->place.line)
      return false;
    const std::uint64_t other = access.address[lane];
    const std::uint64_t from = std::max(begin, other), to = std::min(end, other + access.bytes);
    return from < to &&
           std::memcmp(value_of(mine) + (from - begin), value_of(lane) + (from - other), to - from) == 0;
  }

  void report_race(const Turn& turn, std::uint32_t at, std::uint32_t count, std::uint32_t other,
                   const Write* last) const {
    const bool equal = last && writes_equal(turn, *last);
    std::string text = "race in " + describe_place(at, count) + ": " + describe_thread(turn, other) +
                       (last ? " wrote there" : " read there");
    if (last && last->line())
      text += " (" + describe_line(*turn.warp.block().launch().kernel().function, last->line()) + ")";
    text += ", and no synchronisation orders this " + std::string(verb(turn.access.kind)) + " after that";
    if (equal) text += "; both write the same value";
    report(equal ? Severity::note : Severity::error, equal ? "shared-race-equal" : "shared-race", text,
           {&turn.warp, turn.lane, &turn.instruction});
  }

  void report_unwritten(const Turn& turn, std::uint32_t at, std::uint32_t mask) const {
    const auto first = static_cast<std::uint32_t>(std::countr_zero(mask));
    report(Severity::error, "uninitialised-shared",
           std::string(verb(turn.access.kind)) + " of shared memory never written: offset " +
               std::to_string(at + first - reserved_shared),
           {&turn.warp, turn.lane, &turn.instruction});
  }

  void report_copying(const Turn& turn, std::uint32_t at, const Cell& cell) const {
    const std::uint32_t copier =
        cell.write.split() ? split_words[cell.write.index()][0].write.thread() : cell.write.thread();
    report(Severity::error, "copy-in-flight",
           std::string(turn.access.copy ? "cp.async" : verb(turn.access.kind)) + " of " +
               describe_place(at, 4) + ", the target of a cp.async for which " +
               describe_thread(turn, copier) + " has not waited",
           {&turn.warp, turn.lane, &turn.instruction});
  }
};

SharedShadow::SharedShadow(std::uint32_t bytes, std::uint32_t threads)
    : state_(checks_enabled() ? std::make_unique<State>(bytes, threads) : nullptr) {}
SharedShadow::~SharedShadow() = default;

bool SharedShadow::access(Warp& warp, const Instruction& i, const Access& access) {
  if (!state_) return false;
  State& s = *state_;
  s.carried_unwritten = false;
  if (s.clocks.exhausted()) [[unlikely]]
    s.restart();
  const bool strong = access.kind == AccessKind::atomic || access.order != Order::weak;
  const bool reads = access.kind != AccessKind::store, writes = access.kind != AccessKind::load;
  const bool releases = access.order == Order::release || access.order == Order::acquire_release ||
                        access.order == Order::sequential;
  const std::uint32_t w = warp.index(), line = i.statement->place.line;
  const ThreadTime* const known = s.clocks.known(w);
  for_lanes(access.lanes, [&](int lane) {
    const auto address = static_cast<std::uint32_t>(access.address[static_cast<std::size_t>(lane)]);
    const std::uint32_t thread = warp.thread(lane);
    if (strong && reads && s.clocks.released(address)) s.clocks.acquire(address, thread);
    const bool hands_over = strong && writes && (releases || (s.fenced[w] >> lane & 1));
    if (address < reserved_shared) {  // barriers of cooperative groups
      if (hands_over) s.clocks.release(address, thread);
      return;
    }
    const ThreadTime now = s.clocks.now(w);
    const std::uint32_t word = (address - reserved_shared) / 4;
    const std::uint32_t words = access.bytes / 4;
    if (!strong && words > 0 && access.used == ~0u) [[likely]] {
      const Reads read(1u << lane, w, now, false);
      const Write write(now, thread, line, false);
      std::uint32_t k = 0;
      while (k < words && s.touch_known(s.cells[word + k], known, thread, writes, read, write)) ++k;
      if (k == words) return;
      const State::Turn turn{warp, i, access, lane, thread, now, reads, writes, strong};
      for (; k < words; ++k) s.touch_word(turn, word + k, whole_word);
      return;
    }
    const State::Turn turn{warp, i, access, lane, thread, now, reads, writes, strong};
    // Unused bytes may be padding that is stored elsewhere.
    if (access.carries && access.used != ~0u && !s.carried_unwritten)
      s.carried_unwritten = unwritten(address, access.bytes) != 0;
    if (access.bytes >= 4) {
      for (std::uint32_t k = 0; k < access.bytes / 4; ++k)
        if (const std::uint32_t mask = access.used >> 4 * k & whole_word) s.touch_word(turn, word + k, mask);
    } else {
      s.touch_word(turn, word, (access.used & ((1u << access.bytes) - 1)) << address % 4);
    }
    if (hands_over) s.clocks.release(address, thread);
  });
  if (writes && !strong) s.fenced[w] &= ~access.lanes;
  return s.carried_unwritten;
}

std::uint32_t SharedShadow::unwritten(std::uint32_t address, std::uint32_t bytes) const {
  std::uint32_t mask = 0;
  for (std::uint32_t k = 0; state_ && k < bytes; ++k)
    if (const std::uint32_t at = address + k;
        at >= reserved_shared && (at - reserved_shared) / 4 < state_->cells.size())
      mask |= (~state_->cells[(at - reserved_shared) / 4].write.written() >> at % 4 & 1) << k;
  return mask;
}

void SharedShadow::forget_written(std::uint32_t address, std::uint32_t mask) {
  if (!state_) return;
  for (; mask; mask &= mask - 1)
    if (const std::uint32_t at = address + static_cast<std::uint32_t>(std::countr_zero(mask));
        at >= reserved_shared)
      state_->cells[(at - reserved_shared) / 4].write.clear_written(1u << at % 4);
}

void SharedShadow::warp_sync(std::uint32_t warp, LaneMask lanes) {
  if (state_) state_->clocks.warp_sync(warp, lanes);
}
void SharedShadow::arrive(std::uint32_t barrier, std::uint32_t warp) {
  if (state_) state_->clocks.arrive(barrier, warp);
}
void SharedShadow::complete(std::uint32_t barrier, std::uint32_t waiting, bool all) {
  if (state_) state_->clocks.complete(barrier, waiting, all);
}
void SharedShadow::exited(std::uint32_t warp, LaneMask lanes) {
  if (state_) state_->clocks.exited(warp, lanes);
}
void SharedShadow::fence(std::uint32_t warp, LaneMask lanes) {
  if (state_) state_->fenced[warp] |= lanes;
}
void SharedShadow::release(std::uint32_t warp, int lane, std::uint32_t address) {
  if (state_) state_->clocks.release(address, warp * warp_size + static_cast<std::uint32_t>(lane));
}
void SharedShadow::acquire(std::uint32_t warp, int lane, std::uint32_t address) {
  if (state_) state_->clocks.acquire(address, warp * warp_size + static_cast<std::uint32_t>(lane));
}

void SharedShadow::global_write(const Warp& warp, const Access& access) {
  if (!state_ || state_->cells.empty()) return;
  const bool releases = access.order == Order::release || access.order == Order::acquire_release ||
                        access.order == Order::sequential;
  for_lanes(releases ? access.lanes : access.lanes & state_->fenced[warp.index()], [&](int lane) {
    state_->clocks.release(access.address[static_cast<std::size_t>(lane)], warp.thread(lane));
  });
}
void SharedShadow::global_read(const Warp& warp, const Access& access) {
  if (!state_) return;
  for_lanes(access.lanes, [&](int lane) {
    const std::uint64_t address = access.address[static_cast<std::size_t>(lane)];
    if (state_->clocks.released(address)) state_->clocks.acquire(address, warp.thread(lane));
  });
}

void SharedShadow::copy_started(Warp& warp, const Instruction& i, int lane, std::uint32_t address,
                                std::uint32_t bytes) {
  if (!state_ || address < reserved_shared) return;
  State& s = *state_;
  Access access;
  access.kind = AccessKind::store;
  access.copy = true;
  access.bytes = bytes;
  access.lanes = 1u << lane;
  access.address[static_cast<std::size_t>(lane)] = address;
  const State::Turn turn{warp,  i,    access, lane, warp.thread(lane), s.clocks.now(warp.index()),
                         false, true, false};
  for (std::uint32_t word = (address - reserved_shared) / 4, k = 0; k < bytes / 4; ++k) {
    Cell& cell = s.cells[word + k];
    s.touch_word(turn, word + k, whole_word);
    cell.write.set_copying(whole_word);
  }
  s.fenced[warp.index()] &= ~access.lanes;
}

void SharedShadow::copy_landed(Warp& warp, const Instruction& i, int lane, std::uint32_t address,
                               std::uint32_t bytes) {
  if (!state_ || address < reserved_shared) return;
  State& s = *state_;
  const Write write(s.clocks.now(warp.index()), warp.thread(lane), i.statement->place.line, false);
  for (std::uint32_t word = (address - reserved_shared) / 4, k = 0; k < bytes / 4; ++k) {
    Cell& cell = s.cells[word + k];
    cell.write.clear_copying(whole_word);
    cell.write.set_written(whole_word);
    if (cell.write.split()) {
      for (Cell& byte : s.split_words[cell.write.index()]) byte.write.replace(write);
    } else {
      cell.write.replace(write);
    }
  }
}

}  // namespace emulator

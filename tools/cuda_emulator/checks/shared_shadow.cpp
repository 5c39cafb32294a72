#include "checks/shared_shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "checks/last_access.h"
#include "checks/shared_clocks.h"
#include "checks/thread_history.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"

namespace emulator {
namespace {

constexpr std::uint32_t whole_word = 0xf;  ///< mask of a word's bytes
/// As an object of SharedClocks: what was handed over anywhere in global memory. No address is as high.
constexpr std::uint64_t all_releases = ~std::uint64_t{0};

struct Cell {
  LastWrite write;
  LastReads reads;
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

}  // namespace

struct SharedShadow::State {
  State(std::uint32_t size, std::uint32_t threads)
      : clocks(threads),
        cells((size - reserved_shared + 3) / 4),
        warps((threads + warp_size - 1) / warp_size),
        fences(warps),
        global(clocks) {}

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
  /// By warp: the time up to which a fence of the lane lets its next strong writes hand on what it did; 0: none.
  std::vector<std::array<ThreadTime, warp_size>> fences;
  ThreadHistory global;  ///< accesses to global memory

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
  bool ordered(const LastReads reads, std::uint32_t thread, std::uint32_t& culprit) const {
    const auto lanes_ordered = [&](std::uint32_t warp, LaneMask lanes, ThreadTime time) {
      return reads_before(clocks, warp, lanes, time, thread, culprit);
    };
    if (reads.none()) return true;
    if (!reads.many()) return lanes_ordered(reads.warp(), reads.lanes(), reads.time());
    for (std::uint32_t w = 0; w < warps; ++w) {
      const WarpReads& of_warp = readers[reads.index() + w];
      if (of_warp.lanes && !lanes_ordered(w, of_warp.lanes, of_warp.time)) return false;
    }
    return true;
  }

  void forget_reads(LastReads& reads) {
    if (reads.many()) free_readers.push_back(reads.index());
    reads = LastReads();
  }

  void add_read(LastReads& reads, const Turn& turn) {
    const LastReads mine(1u << turn.lane, turn.warp.index(), turn.now, turn.strong);
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
      reads = LastReads::many(index, turn.strong);
    }
    WarpReads& of_warp = readers[reads.index() + turn.warp.index()];
    if (of_warp.time != turn.now) of_warp = {turn.now, 0};
    of_warp.lanes |= 1u << turn.lane;
  }

  /// Judges and records one lane's access to a word or to one byte of a split word. `at`: offset in shared memory;
  /// `bytes`: 4 or 1.
  void touch(Cell& cell, const Turn& turn, std::uint32_t at, std::uint32_t bytes,
             std::uint32_t instruction_line) {
    const LastWrite last = cell.write;
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
      cell.write.replace(LastWrite(turn.now, turn.thread, instruction_line, turn.strong && !plain_before));
    } else {
      add_read(cell.reads, turn);
    }
  }

  /// The usual case of touch_word, and nothing else: a plain read or write of a whole word whose last accesses all lanes of
  /// the warp know, or are the thread's own. Returns whether it was that case.
  bool touch_known(Cell& cell, const ThreadTime* known, std::uint32_t thread, bool writes, LastReads read,
                   LastWrite write) const {
    const LastWrite last = cell.write;
    if (!(writes ? last.whole() : last.settled())) return false;
    if (last.time() > known[last.thread() / warp_size] && last.thread() != thread) return false;
    const LastReads before = cell.reads;
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
      cell.reads = LastReads();
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
      cell.write.replace(LastWrite(turn.now, turn.thread, line, turn.strong));
      cell.reads = LastReads();
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
        byte.reads = LastReads::many(copy, cell.reads.strong());
      }
    }
    forget_reads(cell.reads);
    cell.write.set_split(index);
  }

  /// Times start anew: what was ever written stays known, earlier accesses can no longer race.
  void restart() {
    for (Cell& cell : cells) {
      cell.write.forget();
      cell.reads = LastReads();
    }
    split_words.clear();
    free_split_words.clear();
    readers.clear();
    free_readers.clear();
    clocks.restart();
    global.forget();
    for (auto& of_warp : fences)
      for (ThreadTime& time : of_warp) time = std::min<ThreadTime>(time, 1);
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
  static bool writes_equal(const Turn& turn) {
    const Access& access = turn.access;
    if (access.kind != AccessKind::store || !access.stored) return false;
    const auto value_of = [&](std::size_t lane) { return access.stored + lane * access.stored_stride; };
    const auto mine = static_cast<std::size_t>(turn.lane);
    return std::memcmp(value_of(mine), turn.warp.block().shared() + access.address[mine], access.bytes) == 0;
  }

  void report_race(const Turn& turn, std::uint32_t at, std::uint32_t count, std::uint32_t other,
                   const LastWrite* last) const {
    const OneStore one = last ? one_store(turn.access, static_cast<std::size_t>(turn.lane), *last,
                                          turn.warp.index(), turn.now, turn.instruction.statement->place.line)
                              : OneStore::no;
    if (one == OneStore::alike) return;
    const bool equal = last && one == OneStore::no && writes_equal(turn);
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
    const ThreadTime handed_over = !strong || !writes ? 0
                                   : releases         ? s.clocks.now(w)
                                                      : s.fences[w][static_cast<std::size_t>(lane)];
    if (address < reserved_shared) {  // barriers of cooperative groups
      if (handed_over) s.clocks.release(address, thread, handed_over);
      return;
    }
    const ThreadTime now = s.clocks.now(w);
    const std::uint32_t word = (address - reserved_shared) / 4;
    const std::uint32_t words = access.bytes / 4;
    if (!strong && words > 0 && access.used == ~0u) [[likely]] {
      const LastReads read(1u << lane, w, now, false);
      const LastWrite write(now, thread, line, false);
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
    if (handed_over) s.clocks.release(address, thread, handed_over);
  });
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
  if (!state_) return;
  for_lanes(lanes, [&](int lane) {
    state_->fences[warp][static_cast<std::size_t>(lane)] = state_->clocks.now(warp);
  });
  state_->clocks.advance(warp);
}
void SharedShadow::release(std::uint32_t warp, int lane, std::uint32_t address) {
  if (state_)
    state_->clocks.release(address, warp * warp_size + static_cast<std::uint32_t>(lane),
                           state_->clocks.now(warp));
}
void SharedShadow::acquire(std::uint32_t warp, int lane, std::uint32_t address) {
  if (state_) state_->clocks.acquire(address, warp * warp_size + static_cast<std::uint32_t>(lane));
}

ThreadHistory& SharedShadow::global_threads() {
  if (state_->clocks.exhausted()) [[unlikely]]
    state_->restart();
  return state_->global;
}

void SharedShadow::global_write(const Warp& warp, const Access& access) {
  if (!state_) return;
  State& s = *state_;
  const bool releases = access.order == Order::release || access.order == Order::acquire_release ||
                        access.order == Order::sequential;
  const std::uint32_t w = warp.index();
  for_lanes(access.lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    if (const ThreadTime until = releases ? s.clocks.now(w) : s.fences[w][l]) {
      s.clocks.release(access.address[l], warp.thread(lane), until);
      s.clocks.release(all_releases, warp.thread(lane), until);
    }
  });
}
bool SharedShadow::has_releases() const { return state_ && state_->clocks.released(all_releases); }
void SharedShadow::acquire_releases(const Warp& warp, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { state_->clocks.acquire(all_releases, warp.thread(lane)); });
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
}

void SharedShadow::copy_landed(Warp& warp, const Instruction& i, int lane, std::uint32_t address,
                               std::uint32_t bytes) {
  if (!state_ || address < reserved_shared) return;
  State& s = *state_;
  const LastWrite write(s.clocks.now(warp.index()), warp.thread(lane), i.statement->place.line, false);
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

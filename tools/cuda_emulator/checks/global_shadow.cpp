#include "checks/global_shadow.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <type_traits>
#include <vector>

#include "checks/global_reports.h"
#include "checks/state.h"
#include "checks/thread_history.h"
#include "checks/word_history.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "memory/address_space.h"

namespace emulator {

namespace {

using P = PackedAccess;

/// Reads begin new epochs only up to here, so that kernels full of atomics do not use up the epochs.
constexpr std::uint16_t epochs_for_reads = 1024;

/// What a host thread remembers of the memory it judged last.
struct Recent {
  struct Place {
    std::uint64_t begin = 0, bytes = 0;
    Allocation* allocation = nullptr;
    OperationId operation = 0;
  };
  EarlierOperations earlier;
  std::array<Place, 8> places{};
  std::uint64_t generation = 0;
  /// By number of the granule, from 1 on; granules never move.
  std::array<std::pair<std::uint64_t, Granule*>, 256> granules{};

  Granule* known_granule(std::uint64_t address) const {
    const std::uint64_t number = address / Granule::bytes + 1;
    const auto& [known, granule] = granules[number % granules.size()];
    return known == number ? granule : nullptr;
  }
  Granule& granule(std::uint64_t address) {
    const std::uint64_t number = address / Granule::bytes + 1;
    auto& [known, granule] = granules[number % granules.size()];
    if (known != number) {
      granule = AddressSpace::instance().granule(address, true);
      known = number;
    }
    return *granule;
  }
};
thread_local Recent recent;
// Kernels run even after the end of the main thread's thread_local objects.
static_assert(std::is_trivially_destructible_v<Recent>);

bool is_host(const Allocation& a) {
  return a.kind == AllocationKind::pinned_host || a.kind == AllocationKind::registered_host;
}

/// An operation uses the allocation for the first time, as far as this thread remembers: between its allocation and its free?
void note_use(Allocation& allocation, OperationId operation, const char* what, const ReportPlace& place) {
  OperationOrder& order = OperationOrder::instance();
  OperationId allocated, freed;
  {
    std::lock_guard lock(allocation.touched_mutex);
    OperationId& last = allocation.touched[order.stream_of(operation)];
    if (last == operation) return;
    if (!order.before(operation, last)) last = operation;
    allocated = allocation.allocated;
    freed = allocation.freed;
  }
  if (allocated && !order.before(allocated, operation))
    report_early_use(allocation, allocated, operation, what, place);
  if (freed && !order.before(operation, freed)) report_late_use(allocation, freed, operation, what, place);
}

Allocation* allocation_of(std::uint64_t address, OperationId operation, const char* what,
                          const ReportPlace& place) {
  auto& places = recent.places;
  if (const std::uint64_t now = AddressSpace::instance().generation(); now != recent.generation) {
    places = {};
    recent.generation = now;
  }
  for (std::size_t n = 0; n < places.size(); ++n) {
    if (address - places[n].begin >= places[n].bytes || places[n].operation != operation) continue;
    if (n)
      std::rotate(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(n),
                  places.begin() + static_cast<std::ptrdiff_t>(n) + 1);
    return places[0].allocation;
  }
  Allocation* a = AddressSpace::instance().find(address);
  if (!a) return nullptr;
  note_use(*a, operation, what, place);
  std::shift_right(places.begin(), places.end(), 1);
  places[0] = {a->begin, a->bytes, a, operation};
  return a;
}

bool is_strong(const Access& access) {
  if (access.kind != AccessKind::atomic && access.order == Order::weak) return false;
  return access.scope == Scope::device || access.scope == Scope::system ||
         (access.kind == AccessKind::atomic && access.scope == Scope::thread);
}

bool orders_release(Order order) {
  return order == Order::release || order == Order::acquire_release || order == Order::sequential;
}

/// Calls f(word) for the words of 4 bytes that the lanes touch. Neighbouring lanes at one place count once.
template <class F>
void for_words(const Access& access, LaneMask lanes, F&& f) {
  std::uint64_t last = 0;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = access.address[static_cast<std::size_t>(lane)];
    if (address == last) return;
    last = address;
    for (std::uint64_t word = address / 4; word <= (address + access.bytes - 1) / 4; ++word) f(word);
  });
}

/// Bits [from, from + count) of a 64-bit word, count 1 ... 64.
std::uint64_t bits(std::uint64_t from, std::uint64_t count) {
  return (count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << from;
}

/// Judges one warp's access.
class GlobalCheck {
 public:
  GlobalCheck(Warp& warp, const Instruction& i, const Access& access)
      : warp_(warp),
        instruction_(i),
        access_(access),
        launch_(warp.block().launch()),
        order_(warp.block().checks().order),
        state_(launch_.checks()),
        threads_(warp.block().checks().shared.global_threads()),
        turn_{access, warp.index(), i.statement->place.line, access.kind != AccessKind::load,
              access.kind == AccessKind::atomic || access.order != Order::weak},
        operation_(launch_.operation()),
        races_(fits_history(operation_)) {}

  /// Returns whether the access carries bytes never written.
  bool run() {
    const bool strong = is_strong(access_), writes = access_.kind != AccessKind::load;
    std::uint16_t epoch = order_.epoch;
    if (strong && writes) {
      epoch = hand_over();
    } else {
      if (writes) note_write();
      const auto pending =
          writes || epoch < epochs_for_reads ? BlockOrder::Pending::epoch : BlockOrder::Pending::covered;
      order_.pending = std::max(order_.pending, pending);
    }
    recent.earlier.set(operation_);
    me_.packed =
        P::pack(operation_, static_cast<std::uint32_t>(warp_.block().index() & P::block_mask), epoch, 15) |
        (strong ? P::strong : 0) | (access_.read_only ? P::constant : 0);
    me_.write = writes;
    me_.clocks = &state_.clocks;
    me_.clock = order_.clock;
    me_.earlier = &recent.earlier;
    const std::uint32_t all = access_.bytes >= 32 ? ~0u : (1u << access_.bytes) - 1;
    if ((access_.used & all) == all)
      judge_runs();
    else
      judge_used_bytes(all & access_.used);
    if (!thread_conflicts_.empty()) [[unlikely]] {
      reports().threads(thread_conflicts_);
    }
    return unwritten_;
  }

 private:
  GlobalReports reports() const { return {warp_, instruction_, access_}; }

  /// What the lanes have written stands behind no fence.
  void note_write() {
    warp_.dirty |= access_.lanes;
    warp_.fenced &= ~access_.lanes;
  }

  /// Hands over what the block has done at the words of the access; returns the epoch handed over.
  std::uint16_t hand_over() {
    const std::uint64_t before = state_.handovers.load(std::memory_order_acquire);
    LaneMask fenced = access_.lanes;
    if (!orders_release(access_.order)) {
      fenced &= ~warp_.dirty;
      if (order_.unfenced_stores) fenced &= warp_.fenced;
    }
    // Behind a fence, earlier strong writes are handed over too.
    if (fenced && order_.strong_writes) order_.pending = BlockOrder::Pending::epoch;
    order_.strong_writes = true;
    std::uint16_t epoch = order_.epoch;
    if (order_.pending == BlockOrder::Pending::nothing) {
      --epoch;
    } else if (order_.pending == BlockOrder::Pending::epoch && epoch < P::last_epoch) {
      ++order_.epoch;
      order_.pending = BlockOrder::Pending::nothing;
    }
    const std::uint32_t block = static_cast<std::uint32_t>(warp_.block().index() & P::block_mask);
    const auto hand_over_at = [&](LaneMask lanes) {
      order_.clock = state_.clocks.with(order_.clock, block, {epoch, order_.fenced});
      GridClocks::Clock included = nullptr;
      for_words(access_, lanes, [&](std::uint64_t word) {
        if (access_.kind == AccessKind::atomic)
          state_.words.exchange(word, order_.clock, included);
        else
          state_.words.release(word, order_.clock);
      });
    };
    if (const LaneMask unfenced = access_.lanes & ~fenced) hand_over_at(unfenced);
    if (fenced) {
      order_.fenced = epoch;
      hand_over_at(fenced);
    }
    // Whether another block has handed over meanwhile, which the exchanges may have missed.
    const bool alone = state_.handovers.fetch_add(1, std::memory_order_acq_rel) == before;
    order_.handovers_seen = alone ? before + 1 : 0;
    order_.handed_over = epoch;
    note_write();
    return epoch;
  }

  /// Lanes whose bytes follow each other are judged together; neighbouring lanes at one place count once.
  void judge_runs() {
    struct Run {
      std::uint64_t begin, end;
      LaneMask lanes;
    };
    std::array<Run, warp_size> runs;
    std::size_t count = 0;
    for_lanes(access_.lanes, [&](int lane) {
      const std::uint64_t begin = access_.address[static_cast<std::size_t>(lane)],
                          end = begin + access_.bytes;
      if (count && runs[count - 1].end == begin)
        runs[count - 1].end = end;
      else if (!count || runs[count - 1].end != end)
        runs[count++] = {begin, end, 0};
      runs[count - 1].lanes |= LaneMask{1} << lane;
    });
    if (count > 2) {
      // Scattered lanes: their histories are fetched together.
      for (std::size_t r = 0; r < count; ++r) {
        const std::uint64_t begin = runs[r].begin;
        if (const Granule* granule = recent.known_granule(begin)) {
          __builtin_prefetch(&granule->cells[begin % Granule::bytes / 4], 1);
          __builtin_prefetch(&granule->initialised[begin % Granule::bytes / 64]);
        }
      }
    }
    for (std::size_t r = 0; r < count; ++r) judge_range(runs[r].begin, runs[r].end, runs[r].lanes);
  }

  void judge_used_bytes(std::uint32_t used) {
    for_lanes(access_.lanes, [&](int lane) {
      const std::uint64_t address = access_.address[static_cast<std::size_t>(lane)];
      // Unused bytes may be padding that is stored elsewhere.
      if (access_.carries && !unwritten_)
        unwritten_ = AddressSpace::instance().first_uninitialised(address, access_.bytes).has_value();
      for (std::uint32_t rest = used; rest;) {
        const int first = std::countr_zero(rest), count = std::countr_one(rest >> first);
        rest &= ~static_cast<std::uint32_t>(
            bits(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(count)));
        judge_range(address + static_cast<std::uint64_t>(first),
                    address + static_cast<std::uint64_t>(first + count), LaneMask{1} << lane);
      }
    });
  }

  void judge_range(std::uint64_t begin, std::uint64_t end, LaneMask lanes) {
    const Allocation* allocation =
        allocation_of(begin, operation_, name_of(access_.kind), reports().place_at(begin));
    if (!allocation || is_host(*allocation)) return;
    if (allocation->device != launch_.device()) [[unlikely]] {
      if (!AddressSpace::instance().reaches(launch_.device(), *allocation)) {
        reports().out_of_reach(*allocation, begin);
        throw KernelFault{700};
      }
    }
    if (allocation->read_only && me_.write) reports().constant_written(begin);
    // Who writes what is read by ld.nc is found below.
    if (!access_.read_only) threads_.record(turn_, begin, end, lanes, thread_conflicts_);
    while (begin < end) {
      const std::uint64_t part_end = std::min(end, (begin / Granule::bytes + 1) * Granule::bytes);
      Granule& granule = recent.granule(begin);
      if (allocation->kind != AllocationKind::managed) judge_marks(granule, begin, part_end);
      if (races_) judge_words(granule, begin, part_end);
      begin = part_end;
    }
  }

  void judge_marks(Granule& granule, std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const std::uint64_t count = std::min(end - begin, 64 - begin % 64), wanted = bits(begin % 64, count);
      std::atomic<std::uint64_t>& marks = granule.initialised[begin % Granule::bytes / 64];
      const std::uint64_t missing = wanted & ~marks.load(std::memory_order_relaxed);
      if (missing) [[unlikely]] {
        if (access_.carries) {
          unwritten_ = true;
          begin += count;
          continue;
        }
        if (access_.kind != AccessKind::store && !access_.replaces)
          reports().unwritten(begin - begin % 64 + static_cast<std::uint64_t>(std::countr_zero(missing)));
        // A byte is reported once.
        marks.fetch_or(wanted, std::memory_order_relaxed);
      }
      begin += count;
    }
  }

  void judge_words(Granule& granule, std::uint64_t begin, std::uint64_t end) {
    judge_whole(granule.whole_write.load(std::memory_order_relaxed), true, begin);
    if (me_.write) judge_whole(granule.whole_read.load(std::memory_order_relaxed), false, begin);
    if (!granule.cells_used.load(std::memory_order_relaxed))
      granule.cells_used.store(true, std::memory_order_relaxed);
    const std::uint64_t base = begin / Granule::bytes * Granule::bytes;
    if (begin % 4 == 0 && end - begin >= 32) begin = judge_whole_words(granule, base, begin, end);
    while (begin < end) {
      const std::uint64_t from = begin % 4, count = std::min(end - begin, 4 - from);
      const std::uint32_t word = static_cast<std::uint32_t>((begin - base) / 4);
      const Finding finding = record(granule, word, static_cast<unsigned>(bits(from, count)), me_);
      if (finding.conflict != Conflict::none) [[unlikely]]
        reports().conflict(finding, begin, count);
      begin += count;
    }
  }

  /// The usual cases of `record`, word by word: words that only earlier operations have used, or only this access's block. Returns
  /// where it stopped.
  std::uint64_t judge_whole_words(Granule& granule, std::uint64_t base, std::uint64_t begin,
                                  std::uint64_t end) {
    constexpr std::uint64_t who = P::operation_field | P::block_field;
    const std::uint64_t mine = me_.packed;
    const bool constant = access_.read_only;
    for (; end - begin >= 4; begin += 4) {
      WordCell& cell = granule.cells[(begin - base) / 4];
      const std::uint64_t w = cell.write.load(std::memory_order_relaxed),
                          r = cell.read.load(std::memory_order_relaxed);
      const OperationId earlier = me_.earlier->last();
      const bool other_write = w != 0 && P::operation(w) != earlier && (constant || ((w ^ mine) & who) != 0);
      if (me_.write) {
        const bool other_read =
            r != 0 && P::operation(r) != earlier && ((r ^ mine) & (who | P::many | P::constant)) != 0;
        if (!other_write && !other_read) {
          cell.write.store(mine, std::memory_order_relaxed);
          if (r) cell.read.store(0, std::memory_order_relaxed);
          continue;
        }
      } else if (!other_write && (r == mine || r == 0 || P::operation(r) == earlier)) {
        if (r != mine) cell.read.store(mine, std::memory_order_relaxed);
        continue;
      }
      const Finding finding = record(granule, static_cast<std::uint32_t>((begin - base) / 4), 15, me_);
      if (finding.conflict != Conflict::none) [[unlikely]]
        reports().conflict(finding, begin, 4);
    }
    return begin;
  }

  void judge_whole(OperationId other, bool wrote, std::uint64_t address) {
    if (other == 0 || other == recent.earlier.last() || recent.earlier.before(other)) return;
    reports().conflict({Conflict::operations, wrote, other}, address, 4);
  }

  Warp& warp_;
  const Instruction& instruction_;
  const Access& access_;
  Launch& launch_;
  BlockOrder& order_;
  LaunchChecks& state_;
  ThreadHistory& threads_;
  const ThreadHistory::Turn turn_;
  OperationId operation_;
  bool races_, unwritten_ = false;
  Accessor me_;
  std::vector<ThreadConflict> thread_conflicts_;
};

}  // namespace

bool check_global(Warp& warp, const Instruction& i, const Access& access) {
  if (!access.lanes) return false;
  const bool undefined = GlobalCheck(warp, i, access).run();
  if (access.kind == AccessKind::atomic || (access.kind == AccessKind::store && access.order != Order::weak))
    warp.block().checks().shared.global_write(warp, access);
  return undefined;
}

namespace {

/// Records that a strong access has seen the word. It was judged before it happened, perhaps before the write that it saw. An atomic reads
/// before it writes: its read belongs to the epoch that its write has handed over.
void note_seen(Warp& warp, const Access& access, std::uint64_t word, GridClocks::Clock clock) {
  Launch& launch = warp.block().launch();
  const OperationId operation = launch.operation();
  const Allocation* allocation = allocation_of(4 * word, operation, name_of(access.kind), {});
  if (!allocation || is_host(*allocation) || !fits_history(operation)) return;
  const BlockOrder& order = warp.block().checks().order;
  const std::uint16_t epoch = access.kind == AccessKind::atomic ? order.handed_over : order.epoch;
  Accessor me;
  me.packed =
      P::pack(operation, static_cast<std::uint32_t>(warp.block().index() & P::block_mask), epoch, 15) |
      P::strong;
  me.clocks = &launch.checks().clocks;
  me.clock = clock;
  me.earlier = &recent.earlier;
  recent.earlier.set(operation);
  record(recent.granule(4 * word), static_cast<std::uint32_t>(word % (Granule::bytes / 4)), 15, me);
}

}  // namespace

void synchronise_global(Warp& warp, const Instruction&, const Access& access) {
  if (access.kind == AccessKind::store) return;
  warp.block().checks().shared.global_read(warp, access);
  if (!is_strong(access)) return;
  LaunchChecks& state = warp.block().launch().checks();
  BlockOrder& order = warp.block().checks().order;
  const std::uint64_t handovers = state.handovers.load(std::memory_order_acquire);
  SharedShadow& threads = warp.block().checks().shared;
  const bool releases = threads.has_releases();
  if (handovers == 0 || (access.kind == AccessKind::atomic && handovers == order.handovers_seen && !releases))
    return;
  GridClocks::Clock& clock = order.clock;
  const std::uint32_t block = static_cast<std::uint32_t>(warp.block().index() & P::block_mask);
  bool of_others = false;
  for_words(access, access.lanes, [&](std::uint64_t word) {
    const GridClocks::Clock there = state.words.acquire(word);
    of_others = of_others || (there && releases && state.clocks.knows_other(there, block, 1));
    if (there == clock) return;
    clock = state.clocks.join(clock, there);
    if (there) note_seen(warp, access, word, clock);
  });
  if (of_others) threads.acquire_releases(warp, access.lanes);
}

void fence_global(Warp& warp, LaneMask lanes) {
  warp.dirty &= ~lanes;
  warp.fenced |= lanes;
}

void block_barrier_global(Block& block) {
  bool dirty = false, fenced = false;
  for (const std::unique_ptr<Warp>& warp : block.warps()) {
    dirty |= warp->dirty != 0;
    fenced |= warp->fenced != 0;
    warp->dirty = warp->fenced = 0;
  }
  BlockOrder& order = block.checks().order;
  order.unfenced_stores = dirty || (order.unfenced_stores && !fenced);
}

void check_range(OperationId operation, std::uint64_t address, std::uint64_t bytes, bool write,
                 const char* what) {
  if (bytes == 0) return;
  const Allocation* allocation = allocation_of(address, operation, what, {});
  if (!allocation || is_host(*allocation) || !fits_history(operation)) return;
  recent.earlier.set(operation);
  Accessor me;
  me.packed = P::pack(operation, 0, 0, 15);
  me.write = write;
  me.earlier = &recent.earlier;

  OperationId other = 0;
  bool other_wrote = false;
  std::uint64_t where = 0;
  const auto conflict = [&](OperationId with, bool wrote, std::uint64_t at) {
    if (other) return;
    other = with;
    other_wrote = wrote;
    where = at;
  };
  const auto earlier = [&](OperationId id) {
    return id == 0 || id == operation || id == recent.earlier.last() || recent.earlier.before(id);
  };
  for (const std::uint64_t end = address + bytes; address < end;) {
    const std::uint64_t base = address / Granule::bytes * Granule::bytes;
    const std::uint64_t part_end = std::min(end, base + Granule::bytes);
    Granule& granule = recent.granule(address);
    const OperationId whole_write = granule.whole_write.load(std::memory_order_relaxed);
    const OperationId whole_read = granule.whole_read.load(std::memory_order_relaxed);
    if (!earlier(whole_write)) conflict(whole_write, true, address);
    if (write && !earlier(whole_read)) conflict(whole_read, false, address);
    if (part_end - address == Granule::bytes) {
      // The cells are only read: what comes later is judged against this operation by the granule as a whole.
      if (granule.cells_used.load(std::memory_order_relaxed)) {
        for (std::uint32_t w = 0; w < granule.cells.size(); ++w) {
          const std::uint64_t written = granule.cells[w].write.load(std::memory_order_relaxed);
          if (!earlier(P::operation(written))) conflict(P::operation(written), true, base + w * 4);
          if (!write) continue;
          const std::uint64_t read = granule.cells[w].read.load(std::memory_order_relaxed);
          if (!earlier(P::operation(read))) conflict(P::operation(read), false, base + w * 4);
        }
      }
      if (write)
        granule.whole_write.store(operation, std::memory_order_relaxed);
      else
        granule.whole_read.store(whole_read ? recent.earlier.both(whole_read) : operation,
                                 std::memory_order_relaxed);
      address = part_end;
      continue;
    }
    granule.cells_used.store(true, std::memory_order_relaxed);
    while (address < part_end) {
      const std::uint64_t from = address % 4, count = std::min(part_end - address, 4 - from);
      const Finding finding = record(granule, static_cast<std::uint32_t>((address - base) / 4),
                                     static_cast<unsigned>(bits(from, count)), me);
      if (finding.conflict != Conflict::none)
        conflict(P::operation(finding.other), finding.other_wrote, address);
      address += count;
    }
  }
  if (other) report_range(operation, other, other_wrote, where, write, what);
}

void check_free(Allocation& allocation, OperationId operation) {
  std::vector<OperationId> users;
  {
    std::lock_guard lock(allocation.touched_mutex);
    for (const auto& [stream, user] : allocation.touched) users.push_back(user);
  }
  OperationOrder& order = OperationOrder::instance();
  for (const OperationId user : users) {
    if (order.before(user, operation)) continue;
    report_early_free(allocation, user, operation);
  }
}

}  // namespace emulator

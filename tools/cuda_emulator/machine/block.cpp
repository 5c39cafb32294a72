#include "machine/block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "machine/launch.h"
#include "machine/random.h"
#include "machine/report.h"
#include "machine/watch.h"

namespace emulator {
namespace {

const char* name_of(BarrierUse use) {
  switch (use) {
    case BarrierUse::sync:
      return "bar.sync";
    case BarrierUse::arrive:
      return "bar.arrive";
    case BarrierUse::reduce_popc:
      return "bar.red.popc";
    case BarrierUse::reduce_and:
      return "bar.red.and";
    case BarrierUse::reduce_or:
      return "bar.red.or";
  }
  return "";
}

}  // namespace

Block::Block(Launch& launch, std::uint64_t index, std::uint64_t seed)
    : launch_(launch),
      index_(index),
      random_(seed),
      shared_(reserved_shared + launch.kernel().dynamic_shared_offset + launch.shape().dynamic_shared) {
  const ptx::Dim3& grid = launch.shape().grid;
  const ptx::Dim3& block = launch.shape().block;
  position_ = {static_cast<std::uint32_t>(index % grid.x),
               static_cast<std::uint32_t>(index / grid.x % grid.y),
               static_cast<std::uint32_t>(index / grid.x / grid.y)};
  threads_ = block.x * block.y * block.z;
  checks_ = watch::block_begins(*this);
  // Shared memory that nobody has written reads as NaN; the reserved part begins as zeros.
  for (std::size_t at = reserved_shared; at + 4 <= shared_.size(); at += 4)
    std::memcpy(shared_.data() + at, &AddressSpace::fill_pattern, 4);
  for (std::uint32_t first = 0; first < threads_; first += warp_size) {
    const std::uint32_t lanes = std::min<std::uint32_t>(warp_size, threads_ - first);
    warps_.push_back(
        std::make_unique<Warp>(*this, first / warp_size, lanes == warp_size ? all_lanes : (1u << lanes) - 1));
  }
  if (launch.in_order()) {
    turn_ = 64;
    return;
  }
  // Some blocks run each warp as far as it gets, others change after a few instructions.
  const std::uint64_t choice = next_random(random_);
  turn_ = choice % 4 == 0 ? 1 + next_random(random_) % 64 : 20000;
}

Block::~Block() = default;

/// The warp that runs next.
std::uint32_t Block::choose(std::span<const std::uint32_t> runnable) {
  if (runnable.size() == 1) return last_ = runnable[0];
  if (!launch_.in_order()) return last_ = runnable[next_random(random_) % runnable.size()];
  const auto behind = std::upper_bound(runnable.begin(), runnable.end(), last_);
  return last_ = behind == runnable.end() ? runnable.front() : *behind;
}

bool Block::run(std::uint64_t budget, Tally& tally) {
  tally_ = &tally;
  progress_ = spinning_ = false;
  std::uint64_t used = 0, idle = 0;
  std::array<std::uint32_t, warp_size> runnable;
  while (used < budget) {
    std::uint32_t count = 0;
    bool finished = true;
    for (std::uint32_t w = 0; w < warps_.size(); ++w) {
      if (!warps_[w]->finished()) finished = false;
      if (warps_[w]->can_run()) runnable[count++] = w;
    }
    if (finished) return true;
    if (count == 0) report_stuck();
    Warp& warp = *warps_[choose({runnable.data(), count})];
    used += 1 + warp.run(std::min(turn_, budget - used));
    if (warp.take_yield()) {
      // Every warp may wait for another block, or for the host.
      if (++idle > 4 * count + 4) {
        spinning_ = true;
        return false;
      }
    } else {
      idle = 0;
    }
  }
  spinning_ = !progress_;
  return false;
}

void Block::arrive(Warp& warp, std::uint32_t barrier, std::uint32_t threads, BarrierUse use,
                   LaneMask predicate, const Instruction& i) {
  Barrier& b = barriers_[barrier];
  const ReportPlace place{&warp, -1, &i};
  const std::uint32_t bit = 1u << warp.index();
  if (b.expected == 0 && b.arrived_warps == 0) {
    b = Barrier{.expected = threads, .use = use, .all = threads == 0, .first = &i, .result = b.result};
  } else {
    const bool reduces = use != BarrierUse::sync && use != BarrierUse::arrive;
    const bool reduced = b.use != BarrierUse::sync && b.use != BarrierUse::arrive;
    if (b.all != (threads == 0) || (!b.all && b.expected != threads)) {
      report(Severity::error, "barrier-count",
             "barrier " + std::to_string(barrier) + ": this warp names " +
                 (threads ? std::to_string(threads) + " threads" : "all threads") + ", others " +
                 (b.all ? "all threads" : std::to_string(b.expected) + " threads"),
             place);
      throw KernelFault{719};
    }
    if (reduces != reduced || (reduces && use != b.use)) {
      report(Severity::error, "barrier-kind",
             "barrier " + std::to_string(barrier) + ": " + name_of(use) + " meets " + name_of(b.use) +
                 " in one phase",
             place);
      throw KernelFault{719};
    }
    if (b.arrived_warps & bit) {
      report(
          Severity::error, "barrier-twice",
          "barrier " + std::to_string(barrier) + ": this warp arrives twice before the barrier is complete",
          place);
      throw KernelFault{719};
    }
  }
  if (b.all && b.first != &i) check_place(barrier, warp, i);
  watch::barrier_arrival(warp, barrier);
  b.arrived_warps |= bit;
  b.arrived += warp_size;
  if (use != BarrierUse::arrive) b.waiting_warps |= bit;
  const LaneMask alive = warp.alive();
  b.popcount += static_cast<std::uint32_t>(std::popcount(predicate & alive));
  b.all_true = b.all_true && (predicate & alive) == alive;
  b.any_true = b.any_true || (predicate & alive) != 0;
  if (is_complete(b)) complete(barrier);
}

/// __syncthreads() wants all threads at one and the same call. PTX only asks for the same number, so that warps at
/// different places may be meant.
void Block::check_place(std::uint32_t barrier, const Warp& warp, const Instruction& i) const {
  const Instruction& first = *barriers_[barrier].first;
  if (i.statement->opcode != "bar" || first.statement->opcode != "bar") return;
  const ReportPlace place{&warp, -1, &i};
  if (repeated("barrier-place", place)) return;
  const ptx::Place& other = first.statement->place;
  const std::string source = describe_source(*launch_.kernel().function->module, other);
  report(Severity::warning, "barrier-place",
         "barrier " + std::to_string(barrier) + " of all threads: this warp waits here, another one at " +
             (source.empty() ? "" : source + ", ") + "PTX line " + std::to_string(other.line) +
             ": __syncthreads() in code that not all warps execute",
         place);
}

/// A barrier of all threads is complete when every warp that has not ended has arrived.
bool Block::is_complete(const Barrier& b) const {
  if (!b.arrived_warps) return false;
  if (!b.all) return b.arrived >= b.expected;
  for (const auto& warp : warps_)
    if (!warp->finished() && !(b.arrived_warps >> warp->index() & 1)) return false;
  return true;
}

void Block::complete(std::uint32_t barrier) {
  Barrier& b = barriers_[barrier];
  switch (b.use) {
    case BarrierUse::reduce_popc:
      b.result = b.popcount;
      break;
    case BarrierUse::reduce_and:
      b.result = b.all_true;
      break;
    case BarrierUse::reduce_or:
      b.result = b.any_true;
      break;
    default:
      break;
  }
  const std::uint32_t waiting = b.waiting_warps, result = b.result;
  const bool all = b.all;
  b = Barrier{.result = result};
  watch::barrier_complete(*this, barrier, waiting, all);
  for (const auto& warp : warps_)
    if (waiting >> warp->index() & 1) warp->release_from_barrier(barrier);
}

void Block::lanes_exited(Warp& warp) {
  made_progress();
  if (!warp.finished()) return;
  for (std::uint32_t barrier = 0; barrier < barriers_.size(); ++barrier)
    if (barriers_[barrier].all && is_complete(barriers_[barrier])) complete(barrier);
}

bool Block::waits() const {
  return !progress_ &&
         std::all_of(warps_.begin(), warps_.end(), [](const auto& w) { return !w->can_run() || w->waits(); });
}

std::string Block::describe_barrier(std::uint32_t barrier) const {
  const Barrier& b = barriers_[barrier];
  std::uint32_t come = 0, expected = b.expected;
  for (const auto& warp : warps_) {
    const auto threads = static_cast<std::uint32_t>(std::popcount(warp->alive()));
    if (b.arrived_warps >> warp->index() & 1) come += threads;
    if (b.all) expected += threads;
  }
  return std::to_string(come) + " of " + std::to_string(expected) + " threads have come";
}

/// No warp can run, and not all have ended: some barrier waits for warps that wait elsewhere.
void Block::report_stuck() {
  std::string text = "the block cannot go on:";
  const Warp* first = nullptr;
  const Instruction* instruction = nullptr;
  for (const auto& warp : warps_)
    for (const Waiting& w : warp->waiting()) {
      if (w.what != Waiting::For::block) continue;
      if (!first) first = warp.get(), instruction = w.instruction;
      text += " warp " + std::to_string(warp->index()) + " waits at barrier " + std::to_string(w.barrier) +
              " ('" + w.instruction->statement->text + "', PTX line " +
              std::to_string(w.instruction->statement->place.line) + ");";
    }
  std::uint32_t ended = 0;
  for (const auto& warp : warps_) ended += warp->finished();
  text += " " + std::to_string(ended) + " of " + std::to_string(warps_.size()) + " warps have ended";
  report(Severity::error, "unmatched-barrier", text, {first, -1, instruction});
  throw KernelFault{719};
}

}  // namespace emulator

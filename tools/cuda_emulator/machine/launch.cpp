#include "machine/launch.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "machine/device.h"
#include "machine/random.h"
#include "machine/report.h"
#include "machine/standstill.h"
#include "machine/watch.h"

namespace emulator {
namespace {

/// Instructions that a block executes before its host thread looks at other blocks.
constexpr std::uint64_t turn = 200'000;
/// The same for each warp of a block where blocks and warps take turns in order.
constexpr std::uint64_t turn_in_order = 64;
/// Turns after which a block that has not ended makes room for others even if it does not look like waiting.
constexpr std::uint32_t long_run = 32;
/// Instructions without progress after which a part of a launch is over.
constexpr std::uint64_t early_idle = 1 << 16;

}  // namespace

std::uint64_t environment_number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 0);
  return *end ? otherwise : value;
}

std::uint32_t worker_count() {
  static const std::uint32_t count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      environment_number("CUDA_EMULATOR_THREADS", std::max(1u, std::thread::hardware_concurrency())), 1,
      256));
  return count;
}

bool checks_enabled() {
  static const bool enabled = environment_number("CUDA_EMULATOR_CHECK", 1) != 0;
  return enabled;
}

bool counters_enabled() {
  static const bool enabled = [] {
    for (const char* const variable : {"CUDA_EMULATOR_COUNTERS", "CUDA_EMULATOR_TIMELINE"})
      if (const char* const name = std::getenv(variable); name && *name) return true;
    return false;
  }();
  return enabled;
}

std::uint64_t base_seed() {
  static const std::uint64_t seed = environment_number("CUDA_EMULATOR_SEED", 1);
  return seed;
}

Launch::Launch(const Kernel& kernel, const LaunchShape& shape, std::vector<std::byte> parameters, int device,
               OperationId operation, std::uint64_t seed)
    : kernel_(kernel),
      shape_(shape),
      parameters_(std::move(parameters)),
      device_(device),
      operation_(operation),
      blocks_(std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z),
      seed_(seed),
      checks_(watch::launch_begins(*this)),
      counters_(count::launch_begins()),
      in_order_(counters_enabled()),
      random_(seed) {
  // No kernel has more registers a thread.
  residency_ = residency_of(*this, 255);
  if (shape.cooperative) {
    AddressSpace& space = AddressSpace::instance();
    grid_sync_ = space.allocate(AllocationKind::system, device, 8, "grid synchronisation");
    if (!grid_sync_) throw std::runtime_error("no memory for the grid barrier of a cooperative launch");
    std::memset(space.translate(grid_sync_->begin, 8).host, 0, 8);
    space.mark_initialised(grid_sync_->begin, 8);
  }
}

Launch::~Launch() {
  if (grid_sync_) AddressSpace::instance().free(*grid_sync_);
}

int Launch::run() {
  const std::uint64_t limit = hang_limit() ? hang_limit() : ~std::uint64_t{0};
  while (!fault_ && ended_ < blocks_) {
    run_until(blocks_, limit);
    if (!fault_ && idle_ > limit) report_standstill();
  }
  count::launch_ends(*counters_, *this);
  return fault_;
}

bool Launch::run_blocks(std::uint64_t blocks) {
  run_until(blocks, early_idle);
  return fault_ == 0;
}

void Launch::run_early(OperationId later) {
  early_ = true;
  run_until(blocks_, early_idle);
  early_ = false;
  operation_ = later;
}

/// Lets the host threads run blocks until so many have ended, or so many instructions have brought no progress.
void Launch::run_until(std::uint64_t ended, std::uint64_t idle) {
  const AnswersSignals answers;
  pause_after_blocks_ = ended;
  pause_after_idle_ = idle;
  paused_ = ended_ >= ended;
  std::vector<std::thread> threads;
  const std::uint64_t workers = std::min<std::uint64_t>(worker_count(), blocks_);
  for (std::uint64_t w = 1; w < workers; ++w) threads.emplace_back([this] { work(); });
  work();
  for (std::thread& thread : threads) thread.join();
  if (!signal_to_answer()) return;
  const std::string text = "cuda_emulator: signal " + std::to_string(signal_to_answer()) + ": " +
                           describe_blocks() + "\n" + describe_places();
  std::fwrite(text.data(), 1, text.size(), stderr);
  end_by_signal();
}

/// "kernel k(int*): of 300 blocks 264 have begun and 2 have ended"
std::string Launch::describe_blocks() const {
  return "kernel " + kernel_.readable + ": of " + std::to_string(blocks_) + " blocks " +
         std::to_string(begun_) + " have begun and " + std::to_string(ended_) + " have ended";
}

std::string Launch::describe_places() const {
  std::vector<const Block*> blocks;
  for (const auto& resident : resident_) blocks.push_back(resident->block.get());
  std::sort(blocks.begin(), blocks.end(),
            [](const Block* a, const Block* b) { return a->index() < b->index(); });
  return describe_standstill(blocks);
}

void Launch::report_standstill() {
  constexpr int launch_timeout = 702;
  fault_ = launch_timeout;
  const std::string since = " in " + std::to_string(idle_) + " instructions";
  if (begun_ < blocks_)
    report(Severity::error, "not-resident",
           describe_blocks() + "; " + std::to_string(residency_.blocks) +
               " fit on the device at one time (limit: " + residency_.limit +
               "). All of these wait, no progress" + since + ", and no other block can begin before one ends",
           {}, describe_places());
  else
    report(Severity::error, "no-progress", describe_blocks() + "; no progress" + since, {},
           describe_places());
}

/// Whether a block may begin while all that have begun wait: as on hardware, one that fits.
bool Launch::may_begin() {
  if (begun_ == blocks_) return false;
  if (running() >= residency_.blocks && !residency_known_) {
    residency_ = residency_of(*this, resources_of(kernel_).registers);
    residency_known_ = true;
  }
  return running() < residency_.blocks;
}

/// Hardware begins blocks in the order of their index when others end. The seeded order is any among the blocks that could have begun.
std::uint64_t Launch::begin_block() {
  ++begun_;
  ++computing_;
  idle_ = 0;
  for (; opened_ < blocks_ && opened_ < ended_ + residency_.blocks; ++opened_) to_begin_.push_back(opened_);
  if (!in_order_) std::swap(to_begin_.front(), to_begin_[next_random(random_) % to_begin_.size()]);
  const std::uint64_t index = to_begin_.front();
  to_begin_.pop_front();
  return index;
}

std::unique_ptr<Launch::Resident> Launch::resume(std::size_t number) {
  std::unique_ptr<Resident> resident = std::move(resident_[number]);
  resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(number));
  return resident;
}

/// The block that a host thread runs next; nullptr when other threads run all that could run.
std::unique_ptr<Launch::Resident> Launch::next(std::unique_lock<std::mutex>& lock) {
  if (!in_order_) {
    const auto ready =
        std::find_if(resident_.begin(), resident_.end(), [](const auto& r) { return !r->waits; });
    if (ready != resident_.end()) return resume(static_cast<std::size_t>(ready - resident_.begin()));
  }
  if (may_begin()) {
    const std::uint64_t index = begin_block();
    const std::uint32_t turns = resident_.empty() ? 0 : resident_.front()->turns;
    lock.unlock();
    std::uint64_t random = seed_ ^ (index * 0x9e37'79b9'7f4a'7c15);
    auto resident = std::make_unique<Resident>();
    resident->turns = turns;
    resident->block = std::make_unique<Block>(*this, index, next_random(random));
    lock.lock();
    return resident;
  }
  if (resident_.empty()) return nullptr;
  // In order, none is more than a turn ahead of another.
  if (in_order_ && !in_hand_.empty() && resident_.front()->turns > *in_hand_.begin() + 1) return nullptr;
  return resume(0);
}

/// What one host thread does: takes a block, runs it for a turn, puts it back or ends it.
///
/// A block may wait for another one that has not begun (look-back scans, grid barriers). A block that waits is left where
/// it stands; when all do so, another one begins.
void Launch::work() {
  Tally tally = count::thread_begins(*counters_);
  std::unique_lock lock(mutex_);
  while (!fault_ && !paused_ && ended_ < blocks_) {
    std::unique_ptr<Resident> resident = next(lock);
    if (!resident) {
      changed_.wait(lock);
      continue;
    }
    const auto in_hand = in_hand_.insert(resident->turns);
    lock.unlock();
    bool ended = false;
    std::uint64_t idle = tally.warp_instructions();
    try {
      Block& block = *resident->block;
      ended = block.run(in_order_ ? turn_in_order * block.warps().size() : turn, tally);
    } catch (const KernelFault& fault) {
      lock.lock();
      if (!fault_) fault_ = fault.error;
      changed_.notify_all();
      break;
    }
    idle = tally.warp_instructions() - idle;
    const bool progress = ended || resident->block->progressed();
    const bool computed = std::exchange(resident->computes, !ended && !resident->block->waits());
    const bool computes = resident->computes;
    resident->waits = ++resident->turns % long_run == 0 || resident->block->spinning();
    if (ended) resident.reset();
    lock.lock();
    in_hand_.erase(in_hand);
    if (ended) {
      ++ended_;
      // What the others wait for may have happened.
      if (!in_order_)
        for (const auto& other : resident_) other->waits = false;
    } else {
      resident_.push_back(std::move(resident));
    }
    computing_ = computing_ + computes - computed;
    idle_ = progress ? 0 : idle_ + (computing_ ? 1 + idle / patience_with_others : idle);
    if (signal_to_answer() || ended_ >= pause_after_blocks_ || idle_ > pause_after_idle_) paused_ = true;
    changed_.notify_all();
  }
  count::thread_ends(*counters_, tally);
}

}  // namespace emulator

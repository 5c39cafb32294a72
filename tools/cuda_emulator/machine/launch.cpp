#include "machine/launch.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "checks/report.h"
#include "machine/random.h"

namespace emulator {
namespace {

/// Instructions of a warp that a block executes before its host thread looks at other blocks.
constexpr std::uint64_t turn = 200'000;
/// Turns after which a block that has not ended makes room for others even if it does not look like waiting.
constexpr std::uint32_t long_run = 32;

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 0);
  return *end ? otherwise : value;
}

}  // namespace

std::uint32_t worker_count() {
  static const std::uint32_t count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      number("CUDA_EMULATOR_THREADS", std::max(1u, std::thread::hardware_concurrency())), 1, 256));
  return count;
}

bool checks_enabled() {
  static const bool enabled = number("CUDA_EMULATOR_CHECK", 1) != 0;
  return enabled;
}

std::uint64_t base_seed() {
  static const std::uint64_t seed = number("CUDA_EMULATOR_SEED", 1);
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
      order_(blocks_) {
  std::uint64_t random = seed;
  offset_ = next_random(random) % blocks_;
  do stride_ = 1 + next_random(random) % blocks_;
  while (std::gcd(stride_, blocks_) != 1);
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
  const std::uint32_t workers = static_cast<std::uint32_t>(std::min<std::uint64_t>(worker_count(), blocks_));
  std::vector<std::thread> threads;
  for (std::uint32_t w = 1; w < workers; ++w) threads.emplace_back([this] { work(); });
  work();
  for (std::thread& thread : threads) thread.join();
  counters_.finish(kernel_, *this);
  return fault_;
}

/// What one host thread does: takes a block, runs it for a turn, puts it back or ends it.
///
/// A block may wait for another one that has not started (look-back scans, grid barriers). A block that waits is left where
/// it stands; when all started blocks do so, another is started.
void Launch::work() {
  std::unique_ptr<Tally> tally = counters_.make_tally();
  std::unique_lock lock(mutex_);
  while (!fault_ && ended_ < blocks_) {
    std::unique_ptr<Resident> resident;
    const auto ready =
        std::find_if(resident_.begin(), resident_.end(), [](const auto& r) { return !r->waits; });
    if (ready != resident_.end()) {
      resident = std::move(*ready);
      resident_.erase(ready);
    } else if (started_ < blocks_) {
      const std::uint64_t index = static_cast<std::uint64_t>(
          (static_cast<unsigned __int128>(started_) * stride_ + offset_) % blocks_);
      ++started_;
      lock.unlock();
      std::uint64_t random = seed_ ^ (index * 0x9e37'79b9'7f4a'7c15);
      resident = std::make_unique<Resident>();
      resident->block = std::make_unique<Block>(*this, index, next_random(random));
      lock.lock();
    } else if (!resident_.empty()) {
      resident = std::move(resident_.front());
      resident_.erase(resident_.begin());
    } else {
      changed_.wait(lock);  // all blocks left are being run by other threads
      continue;
    }
    lock.unlock();
    bool ended = false;
    try {
      ended = resident->block->run(turn, *tally);
    } catch (const KernelFault& fault) {
      lock.lock();
      if (!fault_) fault_ = fault.error;
      changed_.notify_all();
      break;
    }
    resident->waits = resident->block->spinning() || ++resident->turns % long_run == 0;
    if (ended) resident.reset();
    lock.lock();
    if (ended) {
      ++ended_;
      // What the others wait for may have happened.
      for (const auto& other : resident_) other->waits = false;
    } else {
      resident_.push_back(std::move(resident));
    }
    changed_.notify_all();
  }
  counters_.merge(*tally);
}

}  // namespace emulator

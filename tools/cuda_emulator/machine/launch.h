#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "machine/block.h"
#include "machine/resources.h"
#include "machine/watch.h"
#include "memory/address_space.h"

namespace emulator {

/// A kernel cannot go on: what the runtime makes the device's sticky error. The report has been made already.
struct KernelFault {
  int error;  ///< cudaError: 700 illegal address, 710 assert, 715 illegal instruction, 716 misaligned, 719 launch failure ...
};

struct LaunchShape {
  ptx::Dim3 grid{1, 1, 1}, block{1, 1, 1};
  std::uint32_t dynamic_shared = 0;
  bool cooperative = false;
};

/// One run of a kernel on the emulator's threads. Blocks begin in seeded random order and run until they end or wait; while counters are
/// kept, they begin in the order of their index and as many as the device holds take short turns.
class Launch {
 public:
  /// `parameters`: the parameter block (Kernel::parameters). `operation`: the launch in the order of operations (checks/order.h).
  Launch(const Kernel& kernel, const LaunchShape& shape, std::vector<std::byte> parameters, int device,
         OperationId operation, std::uint64_t seed);
  ~Launch();

  /// Runs the grid to its end. Returns 0 or the cudaError of a fault.
  int run();
  /// Runs until so many blocks have ended. Returns false after a fault.
  bool run_blocks(std::uint64_t blocks);
  /// Runs what comes before griddepcontrol.wait while the kernel before in the stream may not have ended: until all blocks have ended or
  /// wait. What follows belongs to the operation `later`.
  void run_early(OperationId later);
  bool early() const { return early_; }
  /// Whether blocks and warps take turns in order and not at random.
  bool in_order() const { return in_order_; }

  const Kernel& kernel() const { return kernel_; }
  const LaunchShape& shape() const { return shape_; }
  const std::byte* parameters() const { return parameters_.data(); }
  std::uint32_t parameter_bytes() const { return static_cast<std::uint32_t>(parameters_.size()); }
  int device() const { return device_; }
  OperationId operation() const { return operation_; }
  std::uint64_t blocks() const { return blocks_; }
  LaunchChecks& checks() { return *checks_; }
  /// Device address behind %envreg1 and %envreg2; 0 unless the launch is cooperative.
  std::uint64_t grid_sync_word() const { return grid_sync_ ? grid_sync_->begin : 0; }
  std::uint64_t seed() const { return seed_; }

 private:
  struct Resident {
    std::unique_ptr<Block> block;
    bool waits = false;    ///< for something outside of the block, as far as can be seen
    bool computes = true;  ///< not all of its warps waited in the last turn
    std::uint32_t turns = 0;
  };
  void work();
  void run_until(std::uint64_t ended, std::uint64_t idle);
  std::unique_ptr<Resident> next(std::unique_lock<std::mutex>& lock);
  std::unique_ptr<Resident> resume(std::size_t number);
  bool may_begin();
  void report_standstill();
  std::string describe_blocks() const;
  std::string describe_places() const;
  std::uint64_t begin_block();
  std::uint64_t running() const { return begun_ - ended_; }

  const Kernel& kernel_;
  LaunchShape shape_;
  std::vector<std::byte> parameters_;
  int device_;
  OperationId operation_;
  std::uint64_t blocks_, seed_;
  Allocation* grid_sync_ = nullptr;
  Watched<LaunchChecks> checks_;
  Watched<LaunchCounters> counters_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Resident>> resident_;  ///< begun, not in the hands of a host thread
  std::uint64_t begun_ = 0, ended_ = 0;             ///< blocks
  const bool in_order_;
  std::uint64_t random_;
  std::uint64_t opened_ = 0;            ///< blocks below it have begun or lie in to_begin_
  std::deque<std::uint64_t> to_begin_;  ///< blocks that may begin next
  Residency residency_;                 ///< of blocks at one time; the least there can be until it matters
  bool residency_known_ = false;
  std::multiset<std::uint32_t> in_hand_;  ///< turns of the blocks in the hands of host threads
  std::uint64_t pause_after_blocks_ = 0, pause_after_idle_ = 0;
  bool paused_ = false, early_ = false;
  std::uint64_t computing_ = 0;  ///< blocks that have begun, not ended, and compute
  std::uint64_t idle_ = 0;       ///< instructions since a block made progress (hang_limit)
  int fault_ = 0;
};

/// The number that an environment variable holds; `otherwise` when it holds none.
std::uint64_t environment_number(const char* variable, std::uint64_t otherwise);

/// Number of host threads that run blocks: CUDA_EMULATOR_THREADS, else the machine's cores.
std::uint32_t worker_count();
/// Whether checks are on: CUDA_EMULATOR_CHECK is not 0.
bool checks_enabled();
/// Whether counters are on: CUDA_EMULATOR_COUNTERS names a file for them, or CUDA_EMULATOR_TIMELINE a folder for records.
bool counters_enabled();
/// CUDA_EMULATOR_SEED, default 1.
std::uint64_t base_seed();

}  // namespace emulator

#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checks/global_shadow.h"
#include "counters/counters.h"
#include "machine/block.h"
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

/// One run of a kernel: blocks in seeded random order on the emulator's threads.
class Launch {
 public:
  /// `parameters`: the parameter block (Kernel::parameters). `operation`: the launch in the order of operations (checks/order.h).
  Launch(const Kernel& kernel, const LaunchShape& shape, std::vector<std::byte> parameters, int device,
         OperationId operation, std::uint64_t seed);
  ~Launch();

  /// Runs the grid to its end. Returns 0 or the cudaError of a fault.
  int run();

  const Kernel& kernel() const { return kernel_; }
  const LaunchShape& shape() const { return shape_; }
  const std::byte* parameters() const { return parameters_.data(); }
  std::uint32_t parameter_bytes() const { return static_cast<std::uint32_t>(parameters_.size()); }
  int device() const { return device_; }
  OperationId operation() const { return operation_; }
  std::uint64_t blocks() const { return blocks_; }
  LaunchOrder& order() { return order_; }  ///< happens-before among the blocks
  LaunchCounters& counters() { return counters_; }
  /// Device address behind %envreg1 and %envreg2; 0 unless the launch is cooperative.
  std::uint64_t grid_sync_word() const { return grid_sync_ ? grid_sync_->begin : 0; }
  std::uint64_t seed() const { return seed_; }

 private:
  struct Resident {
    std::unique_ptr<Block> block;
    bool waits = false;  ///< for something outside of the block, as far as can be seen
    std::uint32_t turns = 0;
  };
  void work();

  const Kernel& kernel_;
  LaunchShape shape_;
  std::vector<std::byte> parameters_;
  int device_;
  OperationId operation_;
  std::uint64_t blocks_, seed_;
  Allocation* grid_sync_ = nullptr;
  LaunchOrder order_;
  LaunchCounters counters_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Resident>> resident_;  ///< started, not running now
  std::uint64_t started_ = 0, ended_ = 0;
  std::uint64_t stride_ = 1, offset_ = 0;  ///< block number n of the order is (offset + n stride) mod blocks
  int fault_ = 0;
};

/// Number of host threads that run blocks: CUDA_EMULATOR_THREADS, else the machine's cores.
std::uint32_t worker_count();
/// Whether checks are on: CUDA_EMULATOR_CHECK is not 0.
bool checks_enabled();
/// CUDA_EMULATOR_SEED, default 1.
std::uint64_t base_seed();

}  // namespace emulator

#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/device.h"
#include "core/error.h"

namespace nemocube {

/// Memory ran out. The text has the wanted bytes, the bytes of all tensors,
/// and the largest owners (AllocationOwner).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// Address space that is left free by every allocation, because C libraries that get no memory crash or end
/// the program: oneDNN writes generated code through a null pointer, OpenMP calls exit().
constexpr std::int64_t cpu_headroom = std::int64_t{16} << 20;

struct MemoryStats {
  std::int64_t current_bytes = 0;   ///< held by live tensors (sizes of their blocks)
  std::int64_t peak_bytes = 0;      ///< largest value of current_bytes since the last reset
  std::int64_t reserved_bytes = 0;  ///< obtained from the system: current plus cached free blocks
};

struct MemoryBlock {
  void* data = nullptr;
  std::int64_t bytes = 0;       ///< of the whole block, at least as many as were asked for
  bool zeros = false;           ///< the system has just handed the block out, full of zeros
  const char* owner = nullptr;  ///< AllocationOwner::current() of the thread that allocated it
};

/// The memory of one device for tensors. Freed blocks may be kept for reuse. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// A block of at least `bytes` bytes, aligned to 64; {} for none. Contents are uninitialised unless
  /// `zeros`. Throws OutOfMemory naming sizes and limit when the device has no memory left.
  virtual MemoryBlock allocate(std::int64_t bytes) = 0;
  virtual void free(const MemoryBlock& block) noexcept = 0;
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;     ///< peak_bytes = current_bytes
  virtual void release_cache() = 0;  ///< returns cached free blocks to the system
};

/// The allocator of a device, for the whole life of the process. Throws Error where the process can use no
/// CUDA device, std::logic_error for Device::meta.
///
/// Blocks of the CPU are kept by size class, so that a training step that has run once takes no memory from
/// the system when it runs again (no page faults, no zeroing). A free block serves requests down to two
/// thirds of its size. Cached blocks beyond most_cpu_reserved() go back to the system before more memory is
/// requested. Every allocation leaves cpu_headroom bytes of address space free, or throws OutOfMemory.
Allocator& allocator(Device device);

/// Memory that a tensor of `bytes` bytes takes on the CPU: a block of the next size class, or whole huge
/// pages.
std::int64_t cpu_block_bytes(std::int64_t bytes);
/// The most bytes that the CPU's allocator keeps, cached blocks included, where tensors never hold more than
/// `most` bytes. The allocator keeps more only while tensors hold more.
std::int64_t most_cpu_reserved(std::int64_t most);

/// For calls into libraries that crash without memory. The constructor throws OutOfMemory unless
/// cpu_headroom bytes of address space are left. While an object lives, no thread, this one included,
/// allocates or frees a tensor.
class CpuHeadroom {
 public:
  explicit CpuHeadroom(const char* purpose);

 private:
  std::unique_lock<std::mutex> lock_;
};

/// Of the CPU: "tensors hold 1.50 GB (gradients 1.20 GB, mamba block 3 300 MB), 12.0 MB cached for reuse; the
/// limit is 2.00 GB (address space, ulimit -v)"
std::string memory_in_use();

}  // namespace nemocube

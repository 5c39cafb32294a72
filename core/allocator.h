#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/error.h"

/// CPU memory for tensors: 64-byte aligned blocks, kept for reuse by size class, so that a training step that
/// has run once allocates nothing from the system (no page faults, no zeroing). A free block serves requests
/// down to two thirds of its size. Cached blocks beyond a quarter of the most that tensors ever held go back
/// to the system before more is asked of it. Thread-safe.
namespace nemocube {

/// Memory ran out. The text says what was wanted and what tensors hold.
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

struct CpuBlock {
  void* data = nullptr;
  std::int64_t bytes = 0;  ///< of the whole block, at least as many as were asked for
  bool zeros = false;      ///< the system has just handed the block out, full of zeros
};

/// A block of at least `bytes` bytes; {} for none. Contents are uninitialised unless `zeros`. Throws OutOfMemory
/// naming sizes and limit when the system has no memory left, or less than cpu_headroom beyond the block.
CpuBlock cpu_allocate(std::int64_t bytes);
void cpu_free(const CpuBlock& block) noexcept;

/// For calls into libraries that crash without memory. When it is made, cpu_headroom bytes of address space
/// are left (OutOfMemory otherwise), and no thread allocates or frees a tensor while it lives, the holder included.
class CpuHeadroom {
 public:
  explicit CpuHeadroom(const char* purpose);

 private:
  std::unique_lock<std::mutex> lock_;
};

MemoryStats cpu_memory();
void reset_cpu_peak();     ///< peak_bytes = current_bytes
void release_cpu_cache();  ///< returns cached free blocks to the system

/// "tensors hold 1.50 GB, 12.0 MB cached for reuse; the limit is 2.00 GB (address space, ulimit -v)"
std::string memory_in_use();

}  // namespace nemocube

#pragma once
#include <cstddef>
#include <cstdint>

/// CPU memory for tensors: 64-byte aligned blocks kept for reuse by size class, so that a training step that
/// has run once allocates nothing from the system (no page faults, no zeroing). A free block serves requests
/// down to two thirds of its size; what is cached beyond a quarter of the most that tensors ever held goes
/// back to the system before more is asked of it. Thread-safe.
namespace nemocube {

struct MemoryStats {
  std::int64_t current_bytes = 0;   ///< held by live tensors (sizes of their blocks)
  std::int64_t peak_bytes = 0;      ///< largest value of current_bytes since the last reset
  std::int64_t reserved_bytes = 0;  ///< obtained from the system: current plus cached free blocks
};

/// Contents are uninitialised. Throws Error naming the size when the system has no memory left.
void* cpu_allocate(std::int64_t bytes);
void cpu_free(void* block, std::int64_t bytes) noexcept;

/// True once for a block that the system has just handed out full of zeros, so that nobody need write them
/// again.
bool cpu_take_fresh_zeros(void* block);

MemoryStats cpu_memory();
void reset_cpu_peak();     ///< peak_bytes = current_bytes
void release_cpu_cache();  ///< returns cached free blocks to the system

}  // namespace nemocube

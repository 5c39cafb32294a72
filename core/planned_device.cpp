#include "core/planned_device.h"

#include <algorithm>
#include <cstddef>
#include <mutex>

#include "core/allocation_owner.h"

namespace nemocube::planned {
namespace {

class Counter final : public Allocator {
 public:
  MemoryBlock allocate(std::int64_t bytes) override {
    if (bytes <= 0) return {};
    const std::lock_guard lock(mutex_);
    stats_.current_bytes += bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
    stats_.reserved_bytes = stats_.current_bytes;
    // Addresses that no other tensor has had, aligned as those of CUDA are, and that no process can touch.
    constexpr std::int64_t alignment = 512;
    next_ += static_cast<std::uintptr_t>((bytes + alignment - 1) / alignment * alignment);
    return {reinterpret_cast<void*>(next_), bytes, false, AllocationOwner::current()};  // NOLINT
  }
  void free(const MemoryBlock& block) noexcept override {
    const std::lock_guard lock(mutex_);
    stats_.current_bytes -= block.bytes;
    stats_.reserved_bytes = stats_.current_bytes;
  }
  MemoryStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.current_bytes;
  }
  void release_cache() override {}

 private:
  mutable std::mutex mutex_;
  MemoryStats stats_;
  std::uintptr_t next_ = std::uintptr_t{1} << 56;
};

}  // namespace

Allocator& device_allocator() {
  static auto* counter = new Counter;  // never destroyed: tensors with static lifetime may be freed last
  return *counter;
}

}  // namespace nemocube::planned

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/allocation_owner.h"
#include "core/cuda/device.cuh"
#include "core/cuda/runtime.h"
#include "core/memory_limit.h"

namespace nemocube::cuda {
namespace {

class DeviceAllocator final : public Allocator {
 public:
  DeviceAllocator() {
    stream();  // chooses the device, whose pool it is
    int device = 0;
    NEMOCUBE_CUDA(cudaGetDevice(&device));
    NEMOCUBE_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device));
    // By default the pool would give freed memory back to the system at every synchronisation.
    auto keep = std::numeric_limits<std::uint64_t>::max();
    NEMOCUBE_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  }

  MemoryBlock allocate(std::int64_t bytes) override {
    if (bytes <= 0) return {};
    MemoryBlock block{nullptr, bytes, false, AllocationOwner::current()};
    cudaError_t error = try_allocate(block);
    if (error == cudaErrorMemoryAllocation) {
      release_cache();
      error = try_allocate(block);
    }
    if (error == cudaErrorMemoryAllocation) fail_for_want_of(bytes);
    check(error, "cudaMallocAsync");
    const std::lock_guard lock(mutex_);
    owned_.add(block.owner, bytes);
    current_ += bytes;
    peak_ = std::max(peak_, current_);
    return block;
  }

  void free(const MemoryBlock& block) noexcept override {
    if (!block.data) return;
    {
      const std::lock_guard lock(mutex_);
      owned_.add(block.owner, -block.bytes);
      current_ -= block.bytes;
    }
    // Not checked: an error here is that of a kernel before it, which the next checked call reports, or means that
    // the process ends and CUDA has given all memory back already.
    try {
      static_cast<void>(cudaFreeAsync(block.data, stream()));
    } catch (const Error&) {
    }
  }

  MemoryStats stats() const override {
    std::uint64_t reserved = 0;
    NEMOCUBE_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    const std::lock_guard lock(mutex_);
    return {current_, peak_, static_cast<std::int64_t>(reserved)};
  }

  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    peak_ = current_;
  }

  void release_cache() override {
    NEMOCUBE_CUDA(cudaStreamSynchronize(stream()));
    NEMOCUBE_CUDA(cudaMemPoolTrimTo(pool_, 0));
  }

 private:
  cudaError_t try_allocate(MemoryBlock& block) const {
    const cudaError_t error = cudaMallocAsync(&block.data, static_cast<std::size_t>(block.bytes), stream());
    if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());  // forgets the error
    return error;
  }

  [[noreturn]] void fail_for_want_of(std::int64_t bytes) const {
    std::size_t free = 0, total = 0;
    NEMOCUBE_CUDA(cudaMemGetInfo(&free, &total));
    const std::lock_guard lock(mutex_);
    throw OutOfMemory(cat("out of memory on cuda: a tensor wants ", bytes_text(bytes), "; tensors hold ",
                          bytes_text(current_), owned_.largest(), ", ",
                          bytes_text(static_cast<std::int64_t>(free)), " of the device's ",
                          bytes_text(static_cast<std::int64_t>(total)), " are free"));
  }

  mutable std::mutex mutex_;
  cudaMemPool_t pool_ = nullptr;
  std::int64_t current_ = 0, peak_ = 0;
  OwnedBytes owned_;
};

// Never destroyed: tensors with static lifetime may be freed last.
Allocator& the_allocator() {
  static auto* allocator = new DeviceAllocator;
  return *allocator;
}

const Provide provided(device_allocator, the_allocator);

}  // namespace
}  // namespace nemocube::cuda

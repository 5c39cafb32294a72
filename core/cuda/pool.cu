#include <algorithm>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "core/allocation_owner.h"
#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/pool.cuh"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "core/memory_limit.h"

namespace nemocube::cuda {
namespace {

class DeviceAllocator final : public Allocator {
 public:
  DeviceAllocator() {
    NEMOCUBE_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device_index()));
    // By default the pool would give freed memory back to the system at every synchronisation.
    auto keep = std::numeric_limits<std::uint64_t>::max();
    NEMOCUBE_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  }

  MemoryBlock allocate(std::int64_t bytes) override {
    if (bytes <= 0) return {};
    MemoryBlock block{nullptr, bytes, false, AllocationOwner::current()};
    cudaError_t error = try_allocate(block);
    if (error == cudaErrorMemoryAllocation && !Capture::current()) {
      release_cache();
      error = try_allocate(block);
    }
    if (error == cudaErrorMemoryAllocation) fail_for_want_of("a tensor", bytes);
    check(error, "cudaMallocAsync");
    const std::lock_guard lock(mutex_);
    if (OnStream::current() != Stream::compute) users_[block.data] |= bit(OnStream::current());
    owned_.add(block.owner, bytes);
    current_ += bytes;
    peak_ = std::max(peak_, current_);
    if (Capture::current()) {
      captured_.emplace(block.data, block);
      captured_peak_ = std::max(captured_peak_, current_);
    }
    return block;
  }

  void free(const MemoryBlock& block) noexcept override {
    if (!block.data) return;
    Capture* const capture = Capture::current();
    unsigned users = 0;
    bool captured = false;
    {
      const std::lock_guard lock(mutex_);
      captured = captured_.erase(block.data) > 0;
      if (capture && !captured) return capture->keep(block);
      owned_.add(block.owner, -block.bytes);
      current_ -= block.bytes;
      if (const auto found = users_.find(block.data); found != users_.end()) {
        users = found->second;
        users_.erase(found);
      }
    }
    if (captured && !capture) return;  // of a capture that failed: there never was such memory
    // Not checked: an error here is that of a kernel before it, which the next checked call reports, or means
    // that the process ends and CUDA has given all memory back already.
    try {
      static_cast<void>(cudaFreeAsync(block.data, last_of(users)));
    } catch (const Error&) {
    }
  }

  MemoryStats stats() const override {
    std::uint64_t reserved = 0, of_graphs = 0;
    NEMOCUBE_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    NEMOCUBE_CUDA(
        cudaDeviceGetGraphMemAttribute(device_index(), cudaGraphMemAttrReservedMemCurrent, &of_graphs));
    const std::lock_guard lock(mutex_);
    return {current_, peak_, static_cast<std::int64_t>(reserved + of_graphs)};
  }

  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    peak_ = current_;
  }

  void note(const void* data, Stream user) {
    if (!data || user == Stream::compute) return;
    const std::lock_guard lock(mutex_);
    users_[data] |= bit(user);
  }

  void release_cache() override {
    wait_for_all();
    NEMOCUBE_CUDA(cudaMemPoolTrimTo(pool_, 0));
    NEMOCUBE_CUDA(cudaDeviceGraphMemTrim(device_index()));
  }

  void begin_capture() {
    const std::lock_guard lock(mutex_);
    captured_from_ = captured_peak_ = current_;
  }

  std::int64_t end_capture() {
    const std::lock_guard lock(mutex_);
    if (!captured_.empty()) {
      const MemoryBlock& left = captured_.begin()->second;
      expect(false, "captured work leaves ", counted(std::ssize(captured_), "tensor"),
             " behind, one of them of ", bytes_text(left.bytes),
             left.owner ? cat(" (", left.owner, ")") : "");
    }
    return captured_peak_ - captured_from_;
  }

  void count_graph(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    peak_ = std::max(peak_, current_ + bytes);
  }

  [[noreturn]] void fail_for_want_of(const char* what, std::int64_t bytes) const {
    std::size_t free = 0, total = 0;
    NEMOCUBE_CUDA(cudaMemGetInfo(&free, &total));
    const std::lock_guard lock(mutex_);
    throw OutOfMemory(cat("out of memory on cuda: ", what, " wants ", bytes_text(bytes), "; tensors hold ",
                          bytes_text(current_), owned_.largest(), ", ",
                          bytes_text(static_cast<std::int64_t>(free)), " of the device's ",
                          bytes_text(static_cast<std::int64_t>(total)), " are free"));
  }

 private:
  static unsigned bit(Stream s) { return 1U << static_cast<unsigned>(s); }

  // The stream on which a block is freed that compute and `users` have used: after the work of all of them.
  static cudaStream_t last_of(unsigned users) {
    Stream last = Stream::compute;
    for (const Stream s : {Stream::copies, Stream::communication, Stream::messages, Stream::background}) {
      if ((users & bit(s)) == 0) continue;
      wait_for_event(s, record_event(last));
      last = s;
    }
    return stream_of(last);
  }

  cudaError_t try_allocate(MemoryBlock& block) const {
    const cudaError_t error = cudaMallocAsync(&block.data, static_cast<std::size_t>(block.bytes), stream());
    if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());  // forgets the error
    return error;
  }

  mutable std::mutex mutex_;
  cudaMemPool_t pool_ = nullptr;
  std::int64_t current_ = 0, peak_ = 0;
  std::int64_t captured_from_ = 0, captured_peak_ = 0;     // of current_, since the capture began
  std::unordered_map<const void*, MemoryBlock> captured_;  // made by a capture, and in use
  OwnedBytes owned_;
  std::unordered_map<const void*, unsigned> users_;  // streams besides compute, of the blocks that have some
};

// Never destroyed: tensors with static lifetime may be freed last.
DeviceAllocator& the_allocator() {
  static auto* allocator = new DeviceAllocator;
  return *allocator;
}

Allocator& allocator_of(int index) {
  static const int in_use = device_index();
  expect(index == in_use, "memory of CUDA device ", index, " wanted, while device ", in_use, " is in use");
  return the_allocator();
}

void note(const Tensor& t, Stream user) {
  expect(t.device().is_cuda(), "use of a tensor on ", t.device(), " by a stream");
  the_allocator().note(t.storage()->data(), user);
}

const Provide provided[] = {{device_allocator, allocator_of}, {note_use, note}};

}  // namespace

void begin_captured_memory() { the_allocator().begin_capture(); }
std::int64_t end_captured_memory() { return the_allocator().end_capture(); }
void count_graph_memory(std::int64_t bytes) { the_allocator().count_graph(bytes); }
void fail_for_want_of(const char* what, std::int64_t bytes) { the_allocator().fail_for_want_of(what, bytes); }
void release_free_memory() { the_allocator().release_cache(); }
void free_kept(const MemoryBlock& block) { the_allocator().free(block); }

}  // namespace nemocube::cuda

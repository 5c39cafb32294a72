#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <thread>

#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/streams.h"

namespace nemocube::cuda {
namespace {

constexpr std::int64_t smallest = 4096, most_bytes = std::int64_t{64} << 20;

struct FreeBlock {
  MemoryBlock block;
  Event last_use;
};

/// Blocks are powers of two. Those given back wait in the order of their return.
struct Pool {
  std::mutex mutex;
  std::list<FreeBlock> free;
  MemoryStats stats;

  // When the process ends. Errors mean that CUDA has ended before. A thread of its own waits, because the
  // thread-local objects of this one are gone by now, and work that is still queued may run while it waits.
  ~Pool() {
    std::thread([] { static_cast<void>(cudaDeviceSynchronize()); }).join();
    for (const FreeBlock& f : free) static_cast<void>(cudaFreeHost(f.block.data));
  }
};
Pool& pool() {
  static Pool all;
  return all;
}

MemoryBlock take(std::int64_t bytes) {
  refuse_in_capture("a copy between host and device");
  stream();  // chooses the device for the thread
  const auto wanted = static_cast<std::uint64_t>(std::max(bytes, smallest));
  MemoryBlock block{nullptr, static_cast<std::int64_t>(std::bit_ceil(wanted)), false};
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  const auto of_size = [&](const FreeBlock& f) { return f.block.bytes == block.bytes; };
  auto found = std::ranges::find_if(
      p.free, [&](const FreeBlock& f) { return of_size(f) && event_reached(f.last_use); });
  if (found == p.free.end() && p.stats.reserved_bytes + block.bytes > most_bytes) {
    found = std::ranges::find_if(p.free, of_size);
    if (found != p.free.end()) host_wait_for_event(found->last_use);
  }
  if (found != p.free.end()) {
    block = found->block;
    p.free.erase(found);
  } else {
    NEMOCUBE_CUDA(cudaMallocHost(&block.data, static_cast<std::size_t>(block.bytes)));
    p.stats.reserved_bytes += block.bytes;
  }
  p.stats.current_bytes += block.bytes;
  p.stats.peak_bytes = std::max(p.stats.peak_bytes, p.stats.current_bytes);
  return block;
}

void give_back(const MemoryBlock& block, Event last_use) {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.free.push_back({block, std::move(last_use)});
  p.stats.current_bytes -= block.bytes;
}

MemoryStats stats() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  return p.stats;
}

Event copy(void* to, const void* from, const Tensor& tensor, Staging& staging, cudaMemcpyKind kind) {
  expect(tensor.device().is_cuda() && tensor.contiguous() && tensor.bytes() <= staging.bytes(),
         "a tensor of ", tensor.bytes(), " bytes on ", tensor.device(), " and staging memory of ",
         staging.bytes());
  NEMOCUBE_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(tensor.bytes()), kind, stream()));
  Event end = record_event(OnStream::current());
  staging.used_until(end);
  return end;
}

Event up(const Tensor& to, Staging& from) {
  return copy(to.address(), from.data(), to, from, cudaMemcpyHostToDevice);
}
Event down(Staging& to, const Tensor& from) {
  return copy(to.data(), from.address(), from, to, cudaMemcpyDeviceToHost);
}

const Provide provided[] = {{take_staging, take},
                            {give_back_staging, give_back},
                            {staging_stats, stats},
                            {upload, up},
                            {download, down}};

}  // namespace
}  // namespace nemocube::cuda

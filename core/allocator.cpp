#include "core/allocator.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::int64_t alignment = 64;
constexpr std::int64_t huge_page = std::int64_t{2} << 20;

// Classes are powers of two with eight steps between them: at most 12.5 % is lost to rounding.
std::int64_t size_class(std::int64_t bytes) {
  if (bytes <= 8 * alignment) return (bytes + alignment - 1) / alignment * alignment;
  const auto top = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  const std::int64_t step = top / 8;
  return (bytes + step - 1) / step * step;
}

struct Pool {
  std::mutex mutex;
  std::unordered_map<std::int64_t, std::vector<void*>> free_blocks;
  MemoryStats stats;
};

// Never destroyed: tensors with static lifetime may be freed after any destructor of ours would have run.
Pool& pool() {
  static Pool* p = new Pool;
  return *p;
}

}  // namespace

void* cpu_allocate(std::int64_t bytes) {
  if (bytes <= 0) return nullptr;
  const std::int64_t size = size_class(bytes);
  Pool& p = pool();
  {
    std::lock_guard lock(p.mutex);
    p.stats.current_bytes += size;
    if (p.stats.current_bytes > p.stats.peak_bytes) p.stats.peak_bytes = p.stats.current_bytes;
    if (auto it = p.free_blocks.find(size); it != p.free_blocks.end() && !it->second.empty()) {
      void* block = it->second.back();
      it->second.pop_back();
      return block;
    }
    p.stats.reserved_bytes += size;
  }
  const bool large = size >= 2 * huge_page;
  const std::int64_t align = large ? huge_page : alignment;
  const std::int64_t padded = (size + align - 1) / align * align;
  void* block = std::aligned_alloc(static_cast<std::size_t>(align), static_cast<std::size_t>(padded));
  if (!block) {
    release_cpu_cache();
    block = std::aligned_alloc(static_cast<std::size_t>(align), static_cast<std::size_t>(padded));
  }
  if (!block) {
    MemoryStats held;
    {
      std::lock_guard lock(p.mutex);
      p.stats.current_bytes -= size;
      p.stats.reserved_bytes -= size;
      held = p.stats;
    }
    fail("out of memory: wanted ", bytes, " bytes, ", held.current_bytes, " bytes held by tensors");
  }
  if (large) madvise(block, static_cast<std::size_t>(padded), MADV_HUGEPAGE);
  return block;
}

void cpu_free(void* block, std::int64_t bytes) noexcept {
  if (!block) return;
  const std::int64_t size = size_class(bytes);
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  p.stats.current_bytes -= size;
  p.free_blocks[size].push_back(block);
}

MemoryStats cpu_memory() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  return p.stats;
}

void reset_cpu_peak() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  p.stats.peak_bytes = p.stats.current_bytes;
}

void release_cpu_cache() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  for (auto& [size, blocks] : p.free_blocks) {
    for (void* block : blocks) std::free(block);
    p.stats.reserved_bytes -= size * static_cast<std::int64_t>(blocks.size());
    blocks.clear();
  }
}

}  // namespace nemocube

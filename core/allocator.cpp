#include "core/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::int64_t alignment = 64;
constexpr std::int64_t huge_page = std::int64_t{2} << 20;
constexpr std::int64_t slack = 16 * huge_page;  // cached blocks that are never too many

// Classes are powers of two with eight steps between them: at most 12.5 % is lost to rounding.
std::int64_t size_class(std::int64_t bytes) {
  if (bytes <= 8 * alignment) return (bytes + alignment - 1) / alignment * alignment;
  const auto top = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  const std::int64_t step = top / 8;
  return (bytes + step - 1) / step * step;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t mapped_from = std::int64_t{1} << 62;  // everything from the heap, which is watched
#else
constexpr std::int64_t mapped_from = 2 * huge_page;
#endif

std::size_t mapped_bytes(std::int64_t size) {
  return static_cast<std::size_t>((size + huge_page - 1) / huge_page * huge_page);
}

// Large blocks are mapped on huge page boundaries and arrive full of zeros.
void* system_allocate(std::int64_t size) {
  if (size < mapped_from)
    return std::aligned_alloc(alignment,
                              static_cast<std::size_t>((size + alignment - 1) / alignment * alignment));
  const std::size_t wanted = mapped_bytes(size), reserve = wanted + static_cast<std::size_t>(huge_page);
  void* start = ::mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto* bytes = static_cast<std::byte*>(start);
  const auto past = reinterpret_cast<std::uintptr_t>(start) % static_cast<std::size_t>(huge_page);
  const std::size_t before = past == 0 ? 0 : static_cast<std::size_t>(huge_page) - past;
  if (before > 0) ::munmap(bytes, before);
  ::munmap(bytes + before + wanted, reserve - before - wanted);
  ::madvise(bytes + before, wanted, MADV_HUGEPAGE);
  return bytes + before;
}

void system_free(void* block, std::int64_t size) {
  if (size < mapped_from)
    std::free(block);
  else
    ::munmap(block, mapped_bytes(size));
}

struct Pool {
  std::mutex mutex;
  std::unordered_set<void*> fresh;                         // mapped and never given back
  std::map<std::int64_t, std::vector<void*>> free_blocks;  // by size, no empty lists
  std::unordered_map<void*, std::int64_t> larger;          // handed out for a smaller size: their own
  std::int64_t most_bytes = 0;                             // largest current_bytes ever
  MemoryStats stats;

  void hold(std::int64_t size) {
    stats.current_bytes += size;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.current_bytes);
    most_bytes = std::max(most_bytes, stats.current_bytes);
  }

  // Batches of ragged length want other sizes at every step, so a block half as large again will do.
  void* take_cached(std::int64_t size) {
    const auto it = free_blocks.lower_bound(size);
    if (it == free_blocks.end() || it->first > size + size / 2) return nullptr;
    void* block = it->second.back();
    if (it->first != size) larger[block] = it->first;
    hold(it->first);
    it->second.pop_back();
    if (it->second.empty()) free_blocks.erase(it);
    return block;
  }

  // Returns cached blocks to the system, the largest first, until at most `bytes` are reserved.
  void shrink_to(std::int64_t bytes) {
    while (stats.reserved_bytes > bytes && !free_blocks.empty()) {
      const auto it = std::prev(free_blocks.end());
      system_free(it->second.back(), it->first);
      stats.reserved_bytes -= it->first;
      it->second.pop_back();
      if (it->second.empty()) free_blocks.erase(it);
    }
  }
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
  std::lock_guard lock(p.mutex);
  if (void* cached = p.take_cached(size)) return cached;
  const std::int64_t in_use = std::max(p.most_bytes, p.stats.current_bytes + size);
  p.shrink_to(in_use + in_use / 4 + slack - size);
  void* block = system_allocate(size);
  if (!block) {
    p.shrink_to(0);
    block = system_allocate(size);
  }
  if (!block)
    fail("out of memory: wanted ", bytes, " bytes, ", p.stats.current_bytes, " bytes held by tensors");
  p.hold(size);
  p.stats.reserved_bytes += size;
  if (size >= mapped_from) p.fresh.insert(block);
  return block;
}

void cpu_free(void* block, std::int64_t bytes) noexcept {
  if (!block) return;
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  std::int64_t size = size_class(bytes);
  if (const auto it = p.larger.find(block); it != p.larger.end()) {
    size = it->second;
    p.larger.erase(it);
  }
  p.stats.current_bytes -= size;
  p.fresh.erase(block);
  p.free_blocks[size].push_back(block);
}

bool cpu_take_fresh_zeros(void* block) {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  return p.fresh.erase(block) > 0;
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
  p.shrink_to(0);
}

}  // namespace nemocube

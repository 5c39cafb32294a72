#include "core/allocator.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>

#include "core/allocation_owner.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/guard_device.h"
#include "core/memory_limit.h"
#include "core/planned_device.h"

namespace nemocube {
namespace {

constexpr std::int64_t alignment = 64;
constexpr std::int64_t huge_page = std::int64_t{2} << 20;
constexpr std::int64_t page = 4096, huge_from = 2 * huge_page;
constexpr std::int64_t slack = 4 * huge_page;  // cached blocks that are never too many

/// Sizes of blocks: 64, 128, .. 512 bytes, then eight steps from each power of two to the next, so that at
/// most 12.5 % is lost to rounding. Class c holds blocks of class_bytes(c).
constexpr std::size_t classes = 432;
constexpr std::int64_t class_bytes(std::size_t c) {
  const auto n = static_cast<std::int64_t>(c) + 1;
  return n < 8 ? n * alignment : (alignment << (n / 8 - 1)) * (8 + n % 8);
}
constexpr std::int64_t most_bytes_of_a_block = class_bytes(classes - 1);

/// The smallest class that holds `bytes`, from 1 to most_bytes_of_a_block.
constexpr std::size_t class_of(std::int64_t bytes) {
  const std::int64_t lines = (bytes + alignment - 1) / alignment;
  if (lines <= 8) return static_cast<std::size_t>(lines) - 1;
  const int octave = std::bit_width(static_cast<std::uint64_t>(bytes - 1)) - 10;  // 0 for 513 to 1024 bytes
  const std::int64_t step = alignment << octave;
  return static_cast<std::size_t>(8 * octave + (bytes + step - 1) / step) - 1;
}
static_assert(class_of(512) == 7 && class_of(513) == 8 && class_bytes(8) == 576);
static_assert(class_of(1024) == 15 && class_bytes(15) == 1024 && class_of(1025) == 16);
static_assert(class_of(most_bytes_of_a_block) == classes - 1);

#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t mapped_from = std::int64_t{1} << 62;  // everything from the heap, which is watched
#else
constexpr std::int64_t mapped_from = std::int64_t{128} << 10;
#endif

constexpr std::int64_t mapped_heap_from = std::int64_t{128} << 10;  // malloc maps larger objects one by one

std::int64_t granule_of(std::int64_t size) { return size < huge_from ? page : huge_page; }

std::size_t mapped_bytes(std::int64_t size) {
  const std::int64_t granule = granule_of(size);
  return static_cast<std::size_t>((size + granule - 1) / granule * granule);
}

std::byte* map(std::size_t bytes) {
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

bool headroom_is_left() {
  std::byte* start = map(static_cast<std::size_t>(cpu_headroom));
  if (start) ::munmap(start, static_cast<std::size_t>(cpu_headroom));
  return start != nullptr;
}

// Mapped blocks arrive full of zeros, and what is freed leaves no gaps in the heap. Large ones lie on huge
// page boundaries. They are cut from a mapping that is larger by the headroom.
MemoryBlock system_allocate(std::int64_t size) {
  if (size < mapped_from) {
    if (!headroom_is_left()) return {};
    return {std::aligned_alloc(alignment, static_cast<std::size_t>(size)), size, false};
  }
  const auto granule = static_cast<std::size_t>(granule_of(size)), wanted = mapped_bytes(size);
  const std::size_t whole = wanted + granule + static_cast<std::size_t>(cpu_headroom);
  std::byte* start = map(whole);
  if (!start) return {};
  const auto past = reinterpret_cast<std::uintptr_t>(start) % granule;
  const std::size_t before = past == 0 ? 0 : granule - past;
  if (before > 0) ::munmap(start, before);
  ::munmap(start + before + wanted, whole - before - wanted);
  if (size >= huge_from) ::madvise(start + before, wanted, MADV_HUGEPAGE);
  return {start + before, size, true};
}

void system_free(void* block, std::int64_t size) noexcept {
  if (size < mapped_from)
    std::free(block);
  else
    ::munmap(block, mapped_bytes(size));
}

/// Lists of free blocks run through the blocks themselves: freeing needs no memory.
struct FreeBlock {
  FreeBlock* next = nullptr;
};

// By default malloc reserves a heap of 64 MiB of address space for every thread. Where there is no room for
// it, every small object of the thread takes a page of its own, and 16 MiB of headroom are used up in no
// time. So all threads share one heap where address space is limited.
void share_heap_where_space_is_limited() {
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) ::mallopt(M_ARENA_MAX, 1);
}

struct Pool {
  std::mutex mutex;
  std::array<FreeBlock*, classes> free_blocks{};  // of each class, the last freed first
  std::int64_t most_bytes = 0;                    // largest current_bytes ever
  MemoryStats stats;
  OwnedBytes owned;

  Pool() {
    share_heap_where_space_is_limited();
    // By default malloc raises this limit whenever a large object is freed, and large objects that live for a
    // moment (oneDNN's, while it generates code) then leave gaps in the heap.
    ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(mapped_heap_from));
  }

  MemoryBlock hold(MemoryBlock block) {
    block.owner = AllocationOwner::current();
    owned.add(block.owner, block.bytes);
    stats.current_bytes += block.bytes;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.current_bytes);
    most_bytes = std::max(most_bytes, stats.current_bytes);
    return block;
  }

  void keep(const MemoryBlock& block) noexcept {
    owned.add(block.owner, -block.bytes);
    stats.current_bytes -= block.bytes;
    FreeBlock*& first = free_blocks[class_of(block.bytes)];
    first = new (block.data) FreeBlock{first};
  }

  void* take(std::size_t c) {
    FreeBlock* block = free_blocks[c];
    free_blocks[c] = block->next;
    return block;
  }

  // Batches of ragged length want other sizes at every step, so a block half as large again will do.
  MemoryBlock take_cached(std::size_t wanted) {
    const std::int64_t most = class_bytes(wanted) + class_bytes(wanted) / 2;
    for (std::size_t c = wanted; c < classes && class_bytes(c) <= most; ++c)
      if (free_blocks[c]) return hold({take(c), class_bytes(c), false});
    return {};
  }

  // Returns cached blocks to the system, the largest first, until at most `bytes` are reserved.
  void shrink_to(std::int64_t bytes) {
    if (cached_bytes() == 0) return;
    for (std::size_t c = classes; c-- > 0;)
      while (free_blocks[c] && stats.reserved_bytes > bytes) {
        system_free(take(c), class_bytes(c));
        stats.reserved_bytes -= class_bytes(c);
      }
  }

  std::int64_t cached_bytes() const { return stats.reserved_bytes - stats.current_bytes; }

  std::string in_use(std::int64_t cached) const {
    const MemoryLimit limit = memory_limit();
    std::string text = cat("tensors hold ", bytes_text(stats.current_bytes), owned.largest(), ", ",
                           bytes_text(cached), " cached for reuse");
    if (!limit.name.empty()) text += cat("; the limit is ", bytes_text(limit.bytes), " (", limit.name, ")");
    return text;
  }
};

// Never destroyed: tensors with static lifetime may be freed after any destructor of ours would have run.
Pool& pool() {
  static Pool* p = new Pool;
  return *p;
}

class CpuAllocator final : public Allocator {
 public:
  MemoryBlock allocate(std::int64_t bytes) override {
    if (bytes <= 0) return {};
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    MemoryBlock block;
    const std::int64_t cached = p.cached_bytes();
    if (bytes <= most_bytes_of_a_block) {
      const std::size_t c = class_of(bytes);
      if (const MemoryBlock found = p.take_cached(c); found.data) return found;
      const std::int64_t size = class_bytes(c), in_use = std::max(p.most_bytes, p.stats.current_bytes + size);
      p.shrink_to(most_cpu_reserved(in_use) - size);
      block = system_allocate(size);
      if (!block.data) {
        p.shrink_to(0);
        block = system_allocate(size);
      }
    }
    if (!block.data)
      throw OutOfMemory(cat("out of memory: a tensor wants ", bytes_text(bytes), "; ", p.in_use(cached)));
    p.stats.reserved_bytes += block.bytes;
    return p.hold(block);
  }

  void free(const MemoryBlock& block) noexcept override {
    if (!block.data) return;
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    p.keep(block);
  }

  MemoryStats stats() const override {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    return p.stats;
  }

  void reset_peak() override {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    p.stats.peak_bytes = p.stats.current_bytes;
  }

  void release_cache() override {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    p.shrink_to(0);
  }
};

}  // namespace

std::int64_t cpu_block_bytes(std::int64_t bytes) {
  if (bytes <= 0) return 0;
  const std::int64_t block = bytes <= most_bytes_of_a_block ? class_bytes(class_of(bytes)) : bytes;
  // Of a block of huge pages only those are touched that the tensor reaches.
  return block < huge_from ? block : static_cast<std::int64_t>(mapped_bytes(bytes));
}

std::int64_t most_cpu_reserved(std::int64_t most) { return most + most / 8 + slack; }

Allocator& allocator(Device device) {
  static CpuAllocator* cpu = new CpuAllocator;  // never destroyed either
  if (device.is_cuda()) return cuda::device_allocator(device.index);
  if (device.is_guard()) return guard::device_allocator();
  if (device.is_planned()) return planned::device_allocator();
  expect(device.is_host(), "there is no memory on ", device);
  return *cpu;
}

CpuHeadroom::CpuHeadroom(const char* purpose) : lock_(pool().mutex) {
  if (headroom_is_left()) return;
  Pool& p = pool();
  const std::int64_t cached = p.cached_bytes();
  p.shrink_to(0);
  if (!headroom_is_left())
    throw OutOfMemory(
        cat("out of memory: ", purpose, " wants ", bytes_text(cpu_headroom), "; ", p.in_use(cached)));
}

std::string memory_in_use() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  return p.in_use(p.cached_bytes());
}

}  // namespace nemocube

#include "core/guard_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core/allocation_owner.h"
#include "core/error.h"
#include "core/memory_limit.h"
#include "core/profile.h"

namespace nemocube::guard {
namespace {

constexpr std::size_t page = 4096, reserved = std::size_t{1} << 36;
/// Freed blocks of so many bytes give their memory back to the system.
constexpr std::int64_t returned_bytes = 1 << 20;

std::size_t whole_pages(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + page - 1) / page * page;
}

std::mutex handler_mutex;
struct sigaction previous_action;
thread_local int opened_here = 0;

void write_text(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

/// One file in memory under two ranges of addresses: that of the tensors, which nobody can touch, and that of
/// the kernels. Protecting one range between kernels instead would cost time for every page at every kernel.
/// Used from its start on; freed blocks are kept by size.
class Arena {
 public:
  Arena() {
    const int file = ::memfd_create("guard device", MFD_CLOEXEC);
    require(file >= 0 && ::ftruncate(file, static_cast<off_t>(reserved)) == 0,
            "device guard: no memory file: ", std::strerror(errno));
    start_ = map(file, PROT_NONE);
    opened_start_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
  }

  MemoryBlock take(std::int64_t bytes) {
    const std::size_t size = whole_pages(bytes);
    const std::lock_guard lock(mutex_);
    std::byte* data = nullptr;
    if (std::vector<std::byte*>& free = free_[size]; !free.empty()) {
      data = free.back();
      free.pop_back();
    } else {
      if (size > reserved - used_)
        throw OutOfMemory(cat("out of memory on guard: a tensor wants ", bytes_text(bytes), "; tensors hold ",
                              bytes_text(stats_.current_bytes), owned_.largest()));
      data = start_ + used_;
      used_ += size;
    }
    const auto block_bytes = static_cast<std::int64_t>(size);
    stats_.current_bytes += block_bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
    stats_.reserved_bytes = static_cast<std::int64_t>(used_);
    const MemoryBlock block{data, block_bytes, false, AllocationOwner::current()};
    owned_.add(block.owner, block_bytes);
    return block;
  }

  void give_back(const MemoryBlock& block) {
    const std::lock_guard lock(mutex_);
    stats_.current_bytes -= block.bytes;
    owned_.add(block.owner, -block.bytes);
    if (block.bytes >= returned_bytes)
      ::madvise(opened_address(block.data), static_cast<std::size_t>(block.bytes), MADV_REMOVE);
    free_[static_cast<std::size_t>(block.bytes)].push_back(static_cast<std::byte*>(block.data));
  }

  MemoryStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.current_bytes;
  }

  void open() { ++open_; }
  void close() {
    --open_;
    watch_faults();
  }
  bool is_open() const { return open_ > 0; }

  std::byte* opened_address(const void* address) const {
    return opened_start_ + (static_cast<const std::byte*>(address) - start_);
  }

  bool contains(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= start_ && at < start_ + reserved;
  }

 private:
  static std::byte* map(int file, int access) {
    void* start = ::mmap(nullptr, reserved, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    require(start != MAP_FAILED, "device guard: no address space for ", reserved, " bytes");
    return static_cast<std::byte*>(start);
  }
  static void on_fault(int signal, siginfo_t* info, void* context);

  // Others set handlers too, such as the test framework for each test case: the last one before a kernel ends
  // is called for faults elsewhere.
  static void watch_faults() {
    const std::lock_guard lock(handler_mutex);
    struct sigaction now {};
    ::sigaction(SIGSEGV, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
    previous_action = now;
    struct sigaction ours {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &ours, nullptr);
  }

  std::byte *start_ = nullptr, *opened_start_ = nullptr;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
  MemoryStats stats_;
  OwnedBytes owned_;
  std::atomic<int> open_ = 0;
};

// Never destroyed: tensors with static lifetime may be freed last.
Arena& arena() {
  static auto* all = new Arena;
  return *all;
}

void Arena::on_fault(int signal, siginfo_t* info, void* context) {
  if (arena().contains(info->si_addr)) {
    write_text("memory on device guard was touched at an address that no kernel asked for; zone: ");
    write_text(current_zone());
    write_text("\n");
    std::abort();
  }
  if ((previous_action.sa_flags & SA_SIGINFO) && previous_action.sa_sigaction)
    return previous_action.sa_sigaction(signal, info, context);
  ::sigaction(SIGSEGV, &previous_action, nullptr);  // the access is made again
}

class GuardAllocator final : public Allocator {
 public:
  MemoryBlock allocate(std::int64_t bytes) override {
    if (bytes <= 0) return {};
    const MemoryBlock block = arena().take(bytes);
    std::memset(arena().opened_address(block.data), 0xff, static_cast<std::size_t>(block.bytes));
    return block;
  }
  void free(const MemoryBlock& block) noexcept override {
    if (block.data) arena().give_back(block);
  }
  MemoryStats stats() const override { return arena().stats(); }
  void reset_peak() override { arena().reset_peak(); }
  void release_cache() override {}
};

}  // namespace

Allocator& device_allocator() {
  static auto* allocator = new GuardAllocator;
  return *allocator;
}

Opened::Opened() {
  arena().open();
  ++opened_here;
}
Opened::~Opened() {
  --opened_here;
  arena().close();
}
bool is_open() { return arena().is_open(); }
bool is_opened_here() { return opened_here > 0; }
std::byte* opened_address(const void* address) { return arena().opened_address(address); }

}  // namespace nemocube::guard

#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "memory/granule.h"
#include "memory/operation.h"

/// Every address a kernel may use: memory of the virtual devices, managed memory, pinned and registered host memory.
namespace emulator {

enum class AllocationKind : std::uint8_t {
  device,
  stream_ordered,
  managed,
  pinned_host,
  registered_host,
  variable,
  system,
  imported  ///< device memory of another process
};

struct Allocation {
  std::uint64_t begin = 0, bytes = 0;
  AllocationKind kind = AllocationKind::device;
  int device = 0;
  std::uint32_t number = 0;         ///< counts allocations from 1, for messages
  std::string label;                ///< "cudaMalloc", "cudaMallocAsync", "variable counter", "cudaHostAlloc"
  std::atomic<bool> live{true};     ///< false: freed, address kept out of use for a while (quarantine)
  bool read_only = false;           ///< .const variables
  std::atomic<bool> shared{false};  ///< another process may map it
  std::atomic<std::uint64_t> guests{
      0};  ///< stream-ordered: other devices that may use it (cudaMemPoolSetAccess), a bit each
  OperationId allocated = 0, freed = 0;  ///< stream-ordered: the operations that allocate and free; 0: none
  /// Last operation of each stream that touched the allocation, for the check that a free comes after all uses.
  std::map<StreamKey, OperationId> touched;
  std::mutex touched_mutex;
};

/// Where an allocation lies in a file that other processes can map.
struct SharedPlace {
  int file = -1;             ///< descriptor, open as long as the process lives
  std::uint64_t offset = 0;  ///< of the allocation's first byte
};

/// Where an address of the device program lies on the host.
struct Translation {
  std::byte* host = nullptr;  ///< nullptr: no live allocation holds [address, address + bytes)
  Allocation* allocation =
      nullptr;  ///< the one that holds the address, or the nearest one (for messages) when host is nullptr
  bool after_free = false;
};

/// One for the process. All functions are thread-safe.
///
/// Device memory of each virtual device is one reserved range of addresses without access rights, so that host code that reads a
/// device pointer crashes as it does on hardware; its contents lie in a second mapping at a fixed distance. Both are made when the
/// device's first allocation is. Pages are backed by memory when they are touched. Memory that was never written, or was freed,
/// reads as NaN patterns (fill_pattern in every word). Managed memory is used by host and device at one address.
class AddressSpace {
 public:
  static AddressSpace& instance();

  /// nullptr when the device's memory (CUDA_EMULATOR_MEMORY bytes, default 80 GiB as an H100) is used up. Alignment 512.
  /// A gap of at least 512 bytes lies behind every allocation. Freed ranges are reused as late as possible; `again`: but for the freed
  /// one that began at this address and was of the same size, if it still rests (nullptr if not).
  Allocation* allocate(AllocationKind kind, int device, std::uint64_t bytes, std::string label,
                       std::uint64_t again = 0);
  /// Host memory that the program may use in kernels at its own address (pinned, registered).
  Allocation* add_host(AllocationKind kind, void* begin, std::uint64_t bytes, std::string label);
  /// Moves device memory into a file that other processes can map. What they write cannot be seen, so all of it counts as written from
  /// now on. Nothing may use the memory during the call. Throws std::runtime_error.
  SharedPlace share(Allocation& allocation);
  /// Device memory that lies in another process's file. Counts as written. nullptr when the device has no room for its addresses. Throws
  /// std::runtime_error.
  Allocation* import(int device, const SharedPlace& place, std::uint64_t bytes, std::string label);
  /// Marks the allocation freed: contents become NaN patterns, the range is kept out of use (quarantine). Host ranges are
  /// forgotten at once: the object is gone. The object of other ranges lives until the range is used again.
  void free(Allocation& allocation);
  /// The live allocation that holds the address, or nullptr.
  Allocation* find(std::uint64_t address);
  /// Whether the host or another process may write there while kernels run.
  bool written_from_outside(std::uint64_t address);
  /// The allocation that begins at the address, live, or nullptr.
  Allocation* starting_at(std::uint64_t address);
  /// Whether one live allocation holds [address, address + bytes). Touches no memory, so that ranges may be as large as they like.
  bool holds(std::uint64_t address, std::uint64_t bytes);
  /// `overwritten`: the caller is about to write the whole range, so that its contents need not be filled with the pattern.
  Translation translate(std::uint64_t address, std::uint64_t bytes, bool overwritten = false);
  /// The place of an access in words, relative to the allocation that holds it or lies nearest:
  ///     "byte 16 of allocation 3 (cudaMalloc, 1024 bytes)"
  ///     "12 bytes past the end of allocation 3 (cudaMalloc, 1024 bytes)"
  ///     "byte 16 of allocation 3 (cudaMalloc, 1024 bytes), which was freed"
  ///     "byte 1020 of allocation 3 (cudaMalloc, 1024 bytes), 12 of 16 bytes lie past its end"
  std::string describe(std::uint64_t address, std::uint64_t bytes = 1);
  /// Live allocations for the leak report.
  std::vector<Allocation*> live() const;

  /// The granule of a device or managed address; made (and its contents filled with the pattern) when `make`, else nullptr if untouched.
  /// nullptr for host memory.
  Granule* granule(std::uint64_t address, bool make);

  /// Bytes free and in all on a device (cudaMemGetInfo).
  void usage(int device, std::uint64_t& free_bytes, std::uint64_t& total_bytes) const;

  /// Lets kernels of a device use what cudaMalloc gave on another one, and its variables, or ends that.
  void set_peer_access(int device, int owner, bool allowed);
  /// Whether kernels of the device may use the allocation.
  bool reaches(int device, const Allocation& allocation) const;

  // Marks of written bytes, for copies and fills of the host's side of the runtime. Managed and host memory counts as written, since
  // writes by host code cannot be seen.
  void mark_initialised(std::uint64_t address, std::uint64_t bytes);
  /// Removes the marks: values that nobody has defined were stored there.
  void mark_uninitialised(std::uint64_t address, std::uint64_t bytes);
  /// Carries the marks over (copy between device ranges).
  void copy_initialised(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes);
  /// Of the `bytes` (at most 32): bit i: byte i was never written.
  std::uint32_t uninitialised(std::uint64_t address, std::uint32_t bytes);
  /// First byte of the range that was never written, if any.
  std::optional<std::uint64_t> first_uninitialised(std::uint64_t address, std::uint64_t bytes);

  static constexpr std::uint32_t fill_pattern =
      0x7fff'ffff;  ///< NaN as f32, and upper half NaN as bf16 and f16

  /// A range around an address whose translation is the addition of a constant: it lies in one live allocation, and its contents
  /// were filled. size 0: no live allocation holds the address.
  struct Window {
    std::uint64_t begin = 0, size = 0, delta = 0;
  };
  Window window(std::uint64_t address);
  /// Rises with every free: windows of before may have died.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  AddressSpace();
  struct State;
  std::unique_ptr<State> state_;
  std::atomic<std::uint64_t> generation_{0};
};

/// Reports that the system has no room for the addresses of a device's memory. Defined in machine/report.cpp, because reports name kernels
/// and threads.
void report_no_addresses(const char* why);

/// Remembers the windows of a warp's last accesses, so that most translations cost two comparisons. One for each worker thread.
class TranslationCache {
 public:
  /// Host pointer, or nullptr when the access must be looked at more closely (AddressSpace::translate, reports). The contents behind
  /// the pointer were filled with the pattern or written.
  std::byte* translate(std::uint64_t address, std::uint64_t bytes) {
    const AddressSpace::Window& w = windows_[0];
    const std::uint64_t offset = address - w.begin;
    if (offset < w.size && bytes <= w.size - offset) return reinterpret_cast<std::byte*>(address + w.delta);
    return refill(address, bytes);
  }
  void clear() { windows_ = {}; }

 private:
  std::byte* refill(std::uint64_t address, std::uint64_t bytes);
  std::array<AddressSpace::Window, 4> windows_{};  ///< the last used one first
  std::uint64_t generation_ = 0;
};

}  // namespace emulator

#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/address_space.h"
#include "runtime/scheduler.h"

/// Device memory and events that processes of one user on one machine have in common. Each lies in a file without a name that belongs to
/// the process which made it; others open it by that process's number and the number of the descriptor.
namespace emulator {

/// What a handle of 64 bytes (cudaIpcMemHandle_t, cudaIpcEventHandle_t, cudaMemPoolPtrExportData) holds.
struct SharedHandle {
  enum class Kind : std::uint32_t { memory = 0x6d656d31, event = 0x65767431, pool = 0x706f6f31 };
  Kind kind{};
  std::int32_t process = 0, file = -1;
  std::int32_t device = 0;
  std::uint64_t offset = 0, bytes = 0;  ///< of memory: the place in the file
  std::uint64_t pool = 0;               ///< of memory of a pool: which one of the process
};
static_assert(sizeof(SharedHandle) <= 64);

/// A new descriptor of the file. Throws ApiError{cudaErrorInvalidResourceHandle} when the process or its file is gone.
int open_shared(const SharedHandle& handle);

/// Handle of an allocation of device memory. Waits until no work runs, not for all work to end.
SharedHandle export_memory(Allocation& allocation);
/// The memory behind a handle of another process, at an address of this process. Throws ApiError.
Allocation& import_memory(const SharedHandle& handle, const char* label);
/// Whether cudaIpcOpenMemHandle gave this address, so that cudaIpcCloseMemHandle must take it back.
bool opened_by_handle(std::uint64_t address);

/// The records of an event that several processes use, counted from 1.
class SharedEvent {
 public:
  /// A new event. Throws ApiError.
  SharedEvent();
  /// The event behind a handle. Throws ApiError.
  explicit SharedEvent(const SharedHandle& handle);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;

  SharedHandle handle(int device) const;
  /// The last record of any process; 0: none.
  std::uint64_t last() const { return state_->recorded; }
  bool done(std::uint64_t record) const;
  /// Enqueues a record. Returns its number, and in `mark` its place in this process.
  static std::uint64_t record(const std::shared_ptr<SharedEvent>& event, Stream& stream, Mark& mark);
  /// Lets the stream wait for a record of whatever process.
  static void wait(const std::shared_ptr<SharedEvent>& event, Stream& stream, std::uint64_t record);

 private:
  static constexpr std::size_t places = 256;
  /// Lies in the file; begins as zeros.
  struct State {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> done[places];  ///< the last finished record of those with this remainder
  };
  class Record;
  class Wait;
  void map();
  void finish(std::uint64_t record) { state_->done[record % places] = record; }

  int file_ = -1;
  State* state_ = nullptr;
};

}  // namespace emulator

#pragma once
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nccl/segment.h"
#include "nccl/turnstile.h"

/// One rank's view of a communicator.
namespace emulator::nccl {

/// Thrown inside of API calls; the call returns `result` and ncclGetLastError tells the message.
struct Failure {
  ncclResult_t result;
  std::string message;
};

/// An operator of ncclRedOpCreatePreMulSum.
struct PreMultiplied {
  ncclDataType_t type = ncclFloat32;
  std::uint64_t factor = 0;      ///< bits
  const void* device = nullptr;  ///< instead of the bits: read when the operation runs
  bool live = false;
};

/// Lives as long as the program's handle or work that uses it.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int device, bool blocking) : device_(device), blocking_(blocking) {}
  ~Communicator();

  // Coming into being. begin_*() returns at once; poll() then goes on and answers ncclInProgress until all ranks are there.
  void begin_join(const std::string& segment_name, int ranks, int rank);
  void begin_split(std::shared_ptr<Communicator> parent, int color, int key);
  ncclResult_t poll();
  /// Whether poll() has ended with a communicator (ncclSuccess).
  bool ready() const { return stage_ == Stage::ready; }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  Segment& segment() const { return *segment_; }
  RankArea& mine() const { return segment_->rank(rank_); }
  RankArea& area(int rank) const { return segment_->rank(rank); }

  /// The first error of this rank, which stays; takes over what another rank reported.
  ncclResult_t error();
  /// Sets an error on this rank and, with the message, on all others.
  void fail(ncclResult_t result, const std::string& message);
  /// The same for several communicators with one mistake in common: no other error of theirs comes before it.
  static void fail(const std::vector<std::shared_ptr<Communicator>>& communicators, ncclResult_t result,
                   const std::string& message);
  /// Reports this rank's error, once: what the program did wrong as an error, a rank that is gone as a warning.
  void report_error();
  std::string message() const;
  void set_message(const std::string& message);
  /// Ends with an error if a rank that this one waits for is gone. Looks at most every 100 ms. `waited_for` tells which ranks these are
  /// now: a rank that is gone is asked for once more, since it may have left right after it did its part.
  void watch(const std::function<std::vector<int>()>& waited_for);
  /// The same for all ranks whose process has not said that it leaves.
  void watch_all();

  /// Reports the error that this rank has, if any: units of an aborted communicator end without a word.
  void abort();
  bool aborted() const { return aborted_; }
  /// The program will not use the communicator any more.
  void leave(RankState state);

  std::atomic<int> outstanding{0};  ///< units that are not complete
  std::atomic<bool> finalized{false};
  std::vector<PreMultiplied> operators;
  std::string label;  ///< ncclConfig_t::commName, for the timeline

  Turnstile turnstile;

  // In a capture: which one, and the end of the unit that was captured last there (an event of CUDA).
  unsigned long long capture = 0;
  std::shared_ptr<void> captured;

  // Of the unit that is at work.
  std::uint64_t calls = 0;   ///< collectives begun
  std::uint64_t pieces = 0;  ///< pieces of collectives complete

 private:
  enum class Stage { none, announce, exchange, joining, ready, failed };
  void join();
  std::vector<int> not_split(std::uint32_t generation) const;
  bool all_split(std::uint32_t generation);
  std::string how_gone(int rank) const;
  void check_devices() const;
  void take_over_error();
  void publish_error(ncclResult_t result, const std::string& message);
  void wait_for_error(ncclResult_t result, const std::string& message);

  int rank_ = 0, ranks_ = 0;
  const int device_;
  const bool blocking_;
  std::atomic<Stage> stage_{Stage::none};
  std::mutex poll_mutex_;
  std::string segment_name_;
  std::unique_ptr<Segment> segment_;
  std::shared_ptr<Communicator> parent_;
  int color_ = 0, key_ = 0;
  std::uint32_t generation_ = 0;  ///< of the split that makes this communicator
  std::atomic<std::uint32_t> splits_{0};
  std::atomic<int> error_{ncclSuccess};
  std::atomic<bool> error_reported_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<std::int64_t> watched_{0};
  mutable std::mutex message_mutex_;
  std::string message_;
};

/// All communicators of this process that are ready, by the hash of their segment's name and their rank; nullptr if there is none.
std::shared_ptr<Communicator> find_communicator(std::uint64_t hash);

}  // namespace emulator::nccl

#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/streams.h"
#include "parallel/comm/comm_engine.h"
#include "parallel/comm/mpi/late_ranks.h"
#include "parallel/comm/nccl/nccl.h"

namespace nemocube {

/// An operation for which ranks wait: its text for messages, and its group and number for LateRanks.
struct Awaited {
  std::string text;  ///< "all_reduce number 7 (...) of group dp"
  std::string group;
  std::int64_t number = 0;                               ///< LateRanks::come(); 0: not counted
  std::shared_ptr<const std::vector<int>> members = {};  ///< world ranks; null: all
};

/// Watches the collectives that this process has queued with NCCL. The host does not wait for them, so
/// without a watch nobody would notice that another rank does not come. When an operation runs on the device
/// for longer than the limit of waits for messages, or NCCL finds an error, one message is written
/// (report_failure) and the job ends with exit code 2. The message names the ranks that have not come. The
/// watch learns them by MPI (LateRanks).
///
/// One thread asks CUDA and NCCL, and may be blocked there while another thread is in a call that waits for
/// the device. A second thread, which calls neither library, then writes the message. The second thread also
/// answers other ranks that ask where this one is.
class NcclWatch {
 public:
  /// `engine` lives longer.
  NcclWatch(CommEngine& engine, int world_rank, std::unique_ptr<LateRanks> late);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(nccl::Handle group);
  /// The group is not asked for errors any more when this returns.
  void remove(const nccl::Handle& group);
  LateRanks& late() { return *late_; }
  /// This rank comes to the making of NCCL's group `name`, which all ranks make together.
  Awaited come_to_making(const std::string& name);
  /// An operation whose two events are in the device's streams.
  /// `count_seconds` is for timed events: it gets the seconds
  /// between the two, once the end has been seen.
  void add(cuda::Event begin, cuda::Event end, Awaited awaited,
           std::function<void(double)> count_seconds = nullptr);
  /// Waits until NCCL has ended what the host began.
  /// Error after the limit of waits for messages.
  void wait_until_ready(const nccl::Handle& group, const Awaited& awaited);
  /// Waits until all operations have ended and are counted, or until the job ends.
  void wait_for_all();

 private:
  struct Operation {
    cuda::Event begin, end;
    Awaited awaited;
    std::function<void(double)> count_seconds;
    double since = -1;  // when its begin was first seen to be reached, in seconds; -1: not yet
  };
  bool wait(double seconds);
  void watch();
  std::string look(double now);
  void watch_the_watch();
  double limit() const;
  /// Asks the other ranks, which takes up to `patience` seconds.
  std::string waited(double seconds, const Awaited& awaited);

  static constexpr double patience = 5;
  CommEngine& engine_;
  const int world_rank_;
  const std::unique_ptr<LateRanks> late_;

  std::mutex looking_;  // held while CUDA and NCCL are asked, which may block
  std::vector<nccl::Handle> groups_;
  std::deque<Operation> operations_;  // of the thread that asks

  std::mutex mutex_;  // never held in calls of CUDA or NCCL
  std::condition_variable changed_;
  std::vector<Operation> added_;
  Awaited oldest_;          // the first operation under way
  double look_began_ = -1;  // in seconds; -1: no look is under way
  bool ending_ = false;
  std::atomic<std::int64_t> open_{0};  // operations that were not seen to have ended
  std::atomic<bool> hurry_{false};
  std::thread thread_, second_;
};

}  // namespace nemocube

#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/streams.h"
#include "parallel/comm/message_communicator.h"
#include "parallel/comm/nccl.h"

namespace nemocube {

/// Watches the collectives that this process has queued with NCCL, in a thread of its own: no one waits on the host for
/// them, so no one would notice that another rank does not come. When an operation runs on the device for longer than the
/// limit of waits for messages, or NCCL finds an error, it writes one message (report_failure) and ends the job with exit
/// code 2.
class NcclWatch {
 public:
  /// `engine` lives longer.
  NcclWatch(CommEngine& engine, int world_rank) : engine_(engine), world_rank_(world_rank) {}
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(nccl::Handle group);
  void remove(const nccl::Handle& group);
  /// An operation of which both events are in the device's streams. `text`: "all_reduce number 7 (...) of group dp".
  void add(cuda::Event begin, cuda::Event end, std::string text);
  /// Waits until NCCL is ready with what the host began, for as long as waits for messages may take; Error beyond.
  void wait_until_ready(const nccl::Handle& group, const std::string& text);
  /// Waits until all operations have ended, or until the thread has ended the job.
  void wait_for_all();
  /// Ends what this rank's groups do on the device.
  void abort() noexcept;

 private:
  struct Operation {
    cuda::Event begin, end;
    std::string text;
    double since = -1;  // when its begin was first seen to be reached, in seconds; -1: not yet
  };
  void watch();
  std::string problem(double now);
  double limit() const;
  std::string waited(double seconds, const std::string& text) const;

  CommEngine& engine_;
  const int world_rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  std::vector<nccl::Handle> groups_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace nemocube

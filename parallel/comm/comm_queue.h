#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/comm/communicator.h"

namespace nemocube {

/// Executes the operations of all communicators of a process one at a time, first in, first out: run() on the
/// calling thread when nothing waits before it, everything else on one communication thread, which starts
/// with the first start(). After one that throws, every later one throws the same. One thread makes all calls.
class CommQueue {
 public:
  CommQueue() = default;
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;
  ~CommQueue() { finish(); }

  void run(std::function<void()> operation);
  Work start(std::function<void()> operation);
  void finish();  ///< ends the communication thread after what has been started

 private:
  struct Job;
  std::shared_ptr<Job> push(std::function<void()> operation);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // the first one may be running
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace nemocube

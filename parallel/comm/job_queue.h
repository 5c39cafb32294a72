#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "parallel/comm/communicator.h"

namespace nemocube {

/// Executes jobs one at a time, first in, first out: run() uses the calling thread when no job waits before
/// its own; everything else runs on a thread of the queue, which the first start() starts. After a job that
/// throws, every later job throws the same. One thread makes all calls.
class JobQueue {
 public:
  /// `thread_name` is for debuggers; 15 characters at most.
  explicit JobQueue(std::string thread_name) : thread_name_(std::move(thread_name)) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue() { finish(); }

  void run(std::function<void()> operation);
  Work start(std::function<void()> operation);
  void finish();  ///< ends the queue's thread after all started jobs

 private:
  struct Job;
  std::shared_ptr<Job> push(std::function<void()> operation);
  void work();

  std::string thread_name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // the first one may be running
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace nemocube

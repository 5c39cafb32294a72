#include "parallel/comm/job_queue.h"

#include <omp.h>
#include <pthread.h>

#include <utility>

namespace nemocube {

struct JobQueue::Job final : Work::State {
  Job(JobQueue& q, std::function<void()> fn) : queue(q), operation(std::move(fn)) {}
  void wait() override {
    std::unique_lock lock(queue.mutex_);
    queue.changed_.wait(lock, [&] { return ended; });
    if (failure) std::rethrow_exception(failure);
  }
  bool done() override {
    const std::lock_guard lock(queue.mutex_);
    return ended;
  }

  JobQueue& queue;
  std::function<void()> operation;
  bool ended = false;
  std::exception_ptr failure;
};

void JobQueue::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void JobQueue::run(std::function<void()> operation) {
  {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (!jobs_.empty()) {
      lock.unlock();
      return push(std::move(operation))->wait();
    }
  }
  try {
    operation();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    throw;
  }
}

Work JobQueue::start(std::function<void()> operation) { return Work(push(std::move(operation))); }

std::shared_ptr<JobQueue::Job> JobQueue::push(std::function<void()> operation) {
  const auto job = std::make_shared<Job>(*this, std::move(operation));
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  jobs_.push_back(job);
  changed_.notify_all();
  return job;
}

void JobQueue::work() {
  ::pthread_setname_np(::pthread_self(), thread_name_.c_str());
  omp_set_num_threads(1);  // of this thread: the cores belong to the computation
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::shared_ptr<Job> job = jobs_.front();
    job->failure = failure_;
    lock.unlock();
    if (!job->failure) try {
        job->operation();
      } catch (...) {
        job->failure = std::current_exception();
      }
    job->operation = nullptr;  // the tensors are free
    lock.lock();
    if (!failure_) failure_ = job->failure;
    job->ended = true;
    jobs_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace nemocube

#include "parallel/comm/nccl_watch.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "parallel/comm/failure.h"

namespace nemocube {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::add(nccl::Handle group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

void NcclWatch::remove(const nccl::Handle& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

void NcclWatch::add(cuda::Event begin, cuda::Event end, std::string text) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({std::move(begin), std::move(end), std::move(text)});
  if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
}

double NcclWatch::limit() const {
  return engine_.options.timeout_seconds +
         static_cast<double>(engine_.storage_bytes) / slow_storage_bytes_per_second;
}

std::string NcclWatch::waited(double seconds, const std::string& text) const {
  std::ostringstream out;
  out << "rank " << world_rank_ << " waited " << std::fixed << std::setprecision(1) << seconds << " s in "
      << text << "; NCCL does not say which rank has not come";
  return out.str();
}

void NcclWatch::wait_until_ready(const nccl::Handle& group, const std::string& text) {
  const double start = seconds_now();
  while (!nccl::ready(group)) {
    require(!engine_.ending, "another failure ends the job");
    const double seconds = seconds_now() - start;
    require(seconds < limit(), waited(seconds, text));
    ::sched_yield();
  }
}

// What NCCL finds says more than what CUDA makes of it.
std::string NcclWatch::problem(double now) {
  std::string of_cuda;
  try {
    std::erase_if(operations_, [](const Operation& o) { return cuda::event_reached(o.end); });
  } catch (const Error& e) {
    of_cuda = e.what();
  }
  const std::string where = operations_.empty() ? "" : cat(" in ", operations_.front().text);
  for (const nccl::Handle& group : groups_)
    if (const std::string found = nccl::problem(group); !found.empty()) return cat(found, where);
  if (!of_cuda.empty()) return cat(of_cuda, where);
  for (Operation& o : operations_) {
    if (o.since < 0 && cuda::event_reached(o.begin)) o.since = now;
    if (o.since >= 0 && now - o.since > limit()) return waited(now - o.since, o.text);
  }
  return {};
}

void NcclWatch::watch() {
  using namespace std::chrono_literals;
  ::pthread_setname_np(::pthread_self(), "nemocube:nccl");
  std::unique_lock lock(mutex_);
  std::string failure;
  while (!changed_.wait_for(lock, 50ms, [this] { return ending_; })) {
    try {
      failure = problem(seconds_now());
    } catch (const std::exception& e) {
      failure = e.what();
    }
    if (failure.empty()) continue;
    lock.unlock();  // abort() takes it
    ::_exit(report_failure(failure, 2));
  }
}

void NcclWatch::wait_for_all() {
  using namespace std::chrono_literals;
  const auto ended = [this] {
    const std::lock_guard lock(mutex_);
    try {
      return std::ranges::all_of(operations_, [](const Operation& o) { return cuda::event_reached(o.end); });
    } catch (const Error&) {
      return false;  // the thread finds the same, and says so
    }
  };
  while (!ended()) std::this_thread::sleep_for(100us);
}

void NcclWatch::abort() noexcept {
  const std::lock_guard lock(mutex_);
  for (const nccl::Handle& group : groups_) nccl::abort(group);
  groups_.clear();
}

}  // namespace nemocube

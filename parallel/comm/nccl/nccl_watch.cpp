#include "parallel/comm/nccl/nccl_watch.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "parallel/comm/job/failure.h"

namespace nemocube {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

NcclWatch::NcclWatch(CommEngine& engine, int world_rank, std::unique_ptr<LateRanks> late)
    : engine_(engine), world_rank_(world_rank), late_(std::move(late)) {
  second_ = std::thread([this] { watch_the_watch(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (second_.joinable()) second_.join();
}

void NcclWatch::add(nccl::Handle group) {
  const std::lock_guard lock(looking_);
  groups_.push_back(std::move(group));
}

void NcclWatch::remove(const nccl::Handle& group) {
  const std::lock_guard lock(looking_);
  std::erase(groups_, group);
}

Awaited NcclWatch::come_to_making(const std::string& name) {
  const char* const making = "the making of groups";
  return {cat("the making of NCCL's group ", name), making, late_->come(making)};
}

void NcclWatch::add(cuda::Event begin, cuda::Event end, Awaited awaited,
                    std::function<void(double)> count_seconds) {
  ++open_;
  const std::lock_guard lock(mutex_);
  added_.push_back({std::move(begin), std::move(end), std::move(awaited), std::move(count_seconds)});
  if (thread_.joinable()) return;
  thread_ = std::thread([this] { watch(); });
}

double NcclWatch::limit() const {
  return engine_.options.timeout_seconds +
         static_cast<double>(engine_.storage_bytes) / slow_storage_bytes_per_second;
}

std::string NcclWatch::waited(double seconds, const Awaited& awaited) {
  std::ostringstream out;
  out << "rank " << world_rank_ << " waited " << std::fixed << std::setprecision(1) << seconds << " s in "
      << awaited.text << "; "
      << late_->ask(awaited.members ? *awaited.members : late_->all(), awaited.group, awaited.number,
                    patience);
  return out.str();
}

void NcclWatch::wait_until_ready(const nccl::Handle& group, const Awaited& awaited) {
  const double start = seconds_now();
  while (!nccl::ready(group)) {
    require(!engine_.ending, "another failure ends the job");
    const double seconds = seconds_now() - start;
    if (seconds >= limit()) fail(waited(seconds, awaited));
    ::sched_yield();
  }
}

void NcclWatch::wait_for_all() {
  using namespace std::chrono_literals;
  hurry_ = true;
  changed_.notify_all();
  while (open_ > 0) std::this_thread::sleep_for(100us);
  hurry_ = false;
}

// Whether the watch goes on after that long.
bool NcclWatch::wait(double seconds) {
  std::unique_lock lock(mutex_);
  constexpr double shortest = 0.0002;
  const std::chrono::duration<double> pause(hurry_ ? shortest : seconds);
  const bool was_slow = !hurry_;
  changed_.wait_for(lock, pause, [&] { return ending_ || (was_slow && hurry_); });
  return !ending_;
}

// What is wrong, or nothing. What NCCL finds says more than what CUDA makes of it.
std::string NcclWatch::look(double now) {
  std::string of_cuda;
  while (!operations_.empty()) {
    const auto ended = [&](const Operation& o) {
      try {
        return cuda::event_reached(o.end);
      } catch (const Error& e) {
        of_cuda = e.what();
        return false;
      }
    };
    // Those of one stream end in their order.
    const auto first = std::ranges::find_if(operations_, ended);
    if (first == operations_.end()) break;
    if (first->count_seconds) try {
        first->count_seconds(cuda::seconds_between(first->begin, first->end));
      } catch (const Error&) {
        // A time that is not known is no reason to end the run.
      }
    operations_.erase(first);
    --open_;
  }
  const std::string where = operations_.empty() ? "" : cat(" in ", operations_.front().awaited.text);
  for (const nccl::Handle& group : groups_)
    if (const std::string found = nccl::problem(group); !found.empty()) return cat(found, where);
  if (!of_cuda.empty()) return cat(of_cuda, where);
  for (Operation& o : operations_) {
    if (o.since < 0 && cuda::event_reached(o.begin)) o.since = now;
    if (o.since >= 0 && now - o.since > limit()) return waited(now - o.since, o.awaited);
  }
  return {};
}

void NcclWatch::watch() {
  ::pthread_setname_np(::pthread_self(), "nemocube:nccl");
  while (wait(0.05)) {
    const double now = seconds_now();
    const std::lock_guard looking(looking_);
    {
      const std::lock_guard lock(mutex_);
      std::ranges::move(added_, std::back_inserter(operations_));
      added_.clear();
      oldest_ = operations_.empty() ? Awaited{"a call of NCCL", "", 0, {}} : operations_.front().awaited;
      look_began_ = now;
    }
    std::string failure;
    try {
      failure = look(now);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    if (!failure.empty()) ::_exit(report_failure(failure, 2));
    const std::lock_guard lock(mutex_);
    look_began_ = -1;
  }
}

void NcclWatch::watch_the_watch() {
  constexpr double most = 30;  // a look that takes longer is blocked
  for (;;) {
    Awaited awaited;
    double began = -1;
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ending_; })) return;
      began = look_began_;
      if (began >= 0) awaited = oldest_;
    }
    late_->answer();
    const double seconds = seconds_now() - began;
    if (began >= 0 && seconds > limit() + most) ::_exit(report_failure(waited(seconds, awaited), 2));
  }
}

}  // namespace nemocube

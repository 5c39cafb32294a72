#include "parallel/comm/job/time_limit.h"

#include <unistd.h>

#include <chrono>
#include <iomanip>
#include <sstream>
#include <utility>

#include "parallel/comm/job/failure.h"

namespace nemocube {

TimeLimit::TimeLimit(double seconds, std::string call)
    : thread_([this, seconds, call = std::move(call)] { watch(seconds, call); }) {}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TimeLimit::watch(double seconds, const std::string& call) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
  std::ostringstream text;
  text << "waited " << std::fixed << std::setprecision(1) << seconds << " s for the other ranks in " << call
       << ": one of them has ended or has stopped";
  // Before MPI has started, report_failure() ends no rank; the launcher does when this one exits.
  ::_exit(report_failure(text.str(), 2, true));
}

}  // namespace nemocube

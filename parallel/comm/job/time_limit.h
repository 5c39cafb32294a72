#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace nemocube {

/// Ends the job when a call of the message library takes too long: its start, its end, and the making of
/// groups wait inside of the library for all ranks, where the limit of waits for messages does not reach.
class TimeLimit {
 public:
  /// From now on `seconds` may pass while this object lives; then this process writes "waited S s for the
  /// other ranks in CALL" (report_failure) and exits with code 2, upon which the launcher ends the others.
  TimeLimit(double seconds, std::string call);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  void watch(double seconds, const std::string& call);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace nemocube

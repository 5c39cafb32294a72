#pragma once
#include <cstdint>
#include <map>
#include <string>

/// The waits of the host for a device. A device works through its queue while the host goes on; when the host
/// needs a value of the device, the queue runs empty. So every such wait is counted, by name.
namespace nemocube {

/// Names the waits of this thread while an object lives: "step result". The innermost name counts.
class HostWaitName {
 public:
  explicit HostWaitName(const char* name);
  ~HostWaitName();
  HostWaitName(const HostWaitName&) = delete;
  HostWaitName& operator=(const HostWaitName&) = delete;

 private:
  const char* outer_;
};

/// To be called before a wait of this thread: counts the wait under its name, or as "in ZONE" (the
/// profile's). Error in a capture (core/cuda/graph.h), where there is nothing to wait for.
void count_host_wait();

std::map<std::string, std::int64_t> host_waits();  ///< since the last reset
void reset_host_waits();

}  // namespace nemocube

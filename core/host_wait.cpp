#include "core/host_wait.h"

#include <mutex>
#include <utility>

#include "core/cuda/graph.h"
#include "core/error.h"
#include "core/profile.h"

namespace nemocube {
namespace {

thread_local const char* wait_name = nullptr;

struct Counts {
  std::mutex mutex;
  std::map<std::string, std::int64_t> by_name;
};
Counts& counts() {
  static auto* all = new Counts;  // never destroyed: threads may wait until the end
  return *all;
}

}  // namespace

HostWaitName::HostWaitName(const char* name) : outer_(std::exchange(wait_name, name)) {}
HostWaitName::~HostWaitName() { wait_name = outer_; }

void count_host_wait() {
  const std::string name = wait_name ? std::string(wait_name) : cat("in ", current_zone());
  cuda::refuse_in_capture(cat("the host waits for the device: ", name));
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  ++all.by_name[name];
}

std::map<std::string, std::int64_t> host_waits() {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  return all.by_name;
}

void reset_host_waits() {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  all.by_name.clear();
}

}  // namespace nemocube

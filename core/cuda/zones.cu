#include <nvtx3/nvToolsExt.h>

#include <deque>
#include <mutex>
#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/profile.h"

namespace nemocube::cuda {
namespace {

// Zones that are left and whose end the device may not have reached yet. More of them than this are not kept.
constexpr std::size_t most_pending = 4096;

class DeviceZones final : public ZoneWatcher {
 public:
  void time(bool wanted) { timed_ = wanted; }
  bool timed() const { return timed_; }

  void enter(Zone& zone) override {
    nvtxRangePushA(zone.name());
    // Events in a graph have no times that could be asked for.
    open().push_back(timed_ && !Capture::current() ? mark() : nullptr);
  }

  bool leave(Zone& zone) override {
    nvtxRangePop();
    const cudaEvent_t start = open().back();
    open().pop_back();
    if (!start) return timed_ && Capture::current();
    const cudaEvent_t end = mark();
    const std::lock_guard lock(mutex_);
    pending_.push_back({&zone, start, end});
    if (pending_.size() > most_pending) add_oldest();
    return true;
  }

  void collect() override {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty()) add_oldest();
  }

 private:
  struct Left {
    Zone* zone;
    cudaEvent_t start, end;
  };

  // The starts of the zones that the thread is in; null where times are not wanted.
  static std::vector<cudaEvent_t>& open() {
    thread_local std::vector<cudaEvent_t> starts;
    return starts;
  }

  // An event on the stream of the thread.
  cudaEvent_t mark() {
    cudaEvent_t event = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        event = free_.back();
        free_.pop_back();
      }
    }
    if (!event) NEMOCUBE_CUDA(cudaEventCreate(&event));
    NEMOCUBE_CUDA(cudaEventRecord(event, stream()));
    return event;
  }

  void add_oldest() {
    const Left left = pending_.front();
    pending_.pop_front();
    float milliseconds = 0;
    NEMOCUBE_CUDA(cudaEventSynchronize(left.end));
    NEMOCUBE_CUDA(cudaEventElapsedTime(&milliseconds, left.start, left.end));
    left.zone->add(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
    free_.insert(free_.end(), {left.start, left.end});
  }

  std::mutex mutex_;
  std::atomic<bool> timed_ = false;
  std::deque<Left> pending_;
  std::vector<cudaEvent_t> free_;
};

DeviceZones& device_zones() {
  static auto* const zones = new DeviceZones;
  return *zones;
}

void time(bool wanted) {
  watch_zones(device_zones());
  device_zones().time(wanted);
}
bool timed() { return device_zones().timed(); }

const Provide provided[] = {{time_zones, time}, {zones_are_timed, timed}};

}  // namespace
}  // namespace nemocube::cuda

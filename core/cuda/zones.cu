#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/cuda/streams.h"
#include "core/profile.h"

namespace nemocube::cuda {
namespace {

// Zones that are left and whose end the device may not have reached yet. More of them than this are not kept.
constexpr std::size_t most_pending = 4096;

/// Relates the clock of the device to that of the host by an event on an idle stream: the host reads its
/// clock before the event is queued and after it is reached. The narrowest of a few such pairs counts.
class DeviceClock {
 public:
  static constexpr std::int64_t event_resolution =
      500;  // nanoseconds, as cudaEventElapsedTime says of itself
  void read() {
    constexpr int readings = 8;
    NEMOCUBE_CUDA(cudaStreamSynchronize(stream()));
    half_width_ = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < readings; ++i) {
      if (!next_) NEMOCUBE_CUDA(cudaEventCreate(&next_));
      const std::int64_t before = trace::now();
      NEMOCUBE_CUDA(cudaEventRecord(next_, stream()));
      NEMOCUBE_CUDA(cudaEventSynchronize(next_));
      const std::int64_t half = (trace::now() - before) / 2;
      if (half >= half_width_) continue;
      half_width_ = half;
      origin_time_ = before + half;
      std::swap(origin_, next_);
    }
  }
  double uncertainty() const { return static_cast<double>(half_width_ + event_resolution) * 1e-9; }
  /// Times of events in their order are in that order: both are counted from one event.
  std::int64_t host_time(cudaEvent_t event) const {
    float milliseconds = 0;
    NEMOCUBE_CUDA(cudaEventElapsedTime(&milliseconds, origin_, event));
    return origin_time_ + static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  cudaEvent_t origin_ = nullptr, next_ = nullptr;
  std::int64_t origin_time_ = 0, half_width_ = 0;  // nanoseconds
};

class DeviceZones final : public ZoneWatcher {
 public:
  void time(bool wanted) {
    if (wanted) clock_.read();
    timed_ = wanted;
  }
  const DeviceClock& clock() const { return clock_; }
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
    pending_.push_back(
        {&zone, start, end, trace::first_device_row + static_cast<trace::Row>(OnStream::current())});
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
    trace::Row row;
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
    if (trace::recording() && left.zone->is_operation()) record(left);
    free_.insert(free_.end(), {left.start, left.end});
  }

  void record(const Left& left) const {
    const std::int64_t begin = clock_.host_time(left.start), end = clock_.host_time(left.end);
    trace::record({.name = left.zone->name(), .begin = begin, .duration = end - begin, .row = left.row});
  }

  std::mutex mutex_;
  std::atomic<bool> timed_ = false;
  DeviceClock clock_;
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

double uncertainty() { return device_zones().clock().uncertainty(); }
std::int64_t host_time(const Event& event) {
  return device_zones().clock().host_time(static_cast<cudaEvent_t>(event.point.get()));
}

const Provide provided[] = {{time_zones, time},
                            {zones_are_timed, timed},
                            {device_clock_uncertainty, uncertainty},
                            {host_nanoseconds, host_time}};

}  // namespace
}  // namespace nemocube::cuda

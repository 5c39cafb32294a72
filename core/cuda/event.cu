#include <mutex>
#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/streams.h"
#include "core/host_wait.h"

namespace nemocube::cuda {
namespace {

/// Events to be used again: making one takes longer than recording it.
struct FreeEvents {
  unsigned flags;
  std::mutex mutex = {};
  std::vector<cudaEvent_t> events = {};
};
// Never destroyed: events may be dropped last.
FreeEvents& untimed_events() {
  static auto* all = new FreeEvents{cudaEventDisableTiming};
  return *all;
}
FreeEvents& timed_events() {
  static auto* all = new FreeEvents{cudaEventDefault};
  return *all;
}

std::shared_ptr<void> new_event(FreeEvents& free) {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(free.mutex);
    if (!free.events.empty()) {
      event = free.events.back();
      free.events.pop_back();
    }
  }
  if (!event) NEMOCUBE_CUDA(cudaEventCreateWithFlags(&event, free.flags));
  return {event, [&free](void* used) {
            const std::lock_guard lock(free.mutex);
            free.events.push_back(static_cast<cudaEvent_t>(used));
          }};
}

cudaEvent_t event_of(const Event& event) { return static_cast<cudaEvent_t>(event.point.get()); }

Event record_one(FreeEvents& of, Stream on) {
  cudaStream_t queue = stream_of(on);
  Event event{new_event(of)};
  NEMOCUBE_CUDA(cudaEventRecord(event_of(event), queue));
  return event;
}
Event record(Stream on) { return record_one(untimed_events(), on); }
Event record_timed(Stream on) { return record_one(timed_events(), on); }

double seconds(const Event& begin, const Event& end) {
  float milliseconds = 0;
  NEMOCUBE_CUDA(cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)));
  return static_cast<double>(milliseconds) / 1000;
}

void wait(Stream on, const Event& event) {
  if (event.point) NEMOCUBE_CUDA(cudaStreamWaitEvent(stream_of(on), event_of(event), 0));
}

bool reached(const Event& event) {
  if (!event.point) return true;
  if (Capture::current()) return false;  // nothing that is captured has run
  stream();                              // chooses the device for the thread
  const cudaError_t state = cudaEventQuery(event_of(event));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

void host_wait(const Event& event) {
  if (!event.point) return;
  stream();
  count_host_wait();
  NEMOCUBE_CUDA(cudaEventSynchronize(event_of(event)));
}

const Provide provided[] = {{record_event, record},     {record_timed_event, record_timed},
                            {seconds_between, seconds}, {wait_for_event, wait},
                            {event_reached, reached},   {host_wait_for_event, host_wait}};

}  // namespace
}  // namespace nemocube::cuda

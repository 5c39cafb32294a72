#include "runtime/event.h"

#include <chrono>
#include <mutex>
#include <unordered_set>

#include "runtime/api.h"
#include "runtime/capture.h"

namespace emulator {
namespace {

struct Events {
  std::mutex mutex;
  std::unordered_set<const Event*> live;
};
Events& events() {
  static Events* const instance = new Events;
  return *instance;
}

}  // namespace

Event& event_of(cudaEvent_t handle) {
  Event* const event = reinterpret_cast<Event*>(handle);
  const std::lock_guard lock(events().mutex);
  require(events().live.contains(event), cudaErrorInvalidResourceHandle);
  return *event;
}

}  // namespace emulator

using namespace emulator;

namespace {

void create(cudaEvent_t* handle, unsigned flags) {
  require(handle);
  require((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)) == 0);
  Event* const event = new Event;
  event->device = current_device();
  event->flags = flags;
  const std::lock_guard lock(events().mutex);
  events().live.insert(event);
  *handle = reinterpret_cast<cudaEvent_t>(event);
}

void record(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  Event& event = event_of(handle);
  Stream& stream = stream_of(stream_handle);
  require(event.device == stream.device, cudaErrorInvalidResourceHandle);
  if (capture_record(stream, event, (flags & cudaEventRecordExternal) != 0)) return;
  event.capture.reset();
  event.nodes.clear();
  event.mark = Scheduler::instance().record(stream);
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return api("cudaEventCreate", [&] { create(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api("cudaEventCreateWithFlags", [&] { create(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return api("cudaEventDestroy", [&] {
    Event* const event = &event_of(handle);
    {
      const std::lock_guard lock(events().mutex);
      events().live.erase(event);
    }
    delete event;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api("cudaEventRecord", [&] { record(event, stream, cudaEventRecordDefault); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return api("cudaEventRecordWithFlags", [&] { record(event, stream, flags); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned flags) {
  return api("cudaStreamWaitEvent", [&] {
    Event& event = event_of(event_handle);
    Stream& stream = stream_of(stream_handle);
    if (capture_wait(stream, event, (flags & cudaEventWaitExternal) != 0)) return;
    if (event.mark.operation) Scheduler::instance().enqueue(stream, nullptr, event.mark);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return api("cudaEventQuery", [&] {
    Event& event = event_of(handle);
    forbid_captured(event);
    if (!event.mark.operation) return;
    require(Scheduler::instance().query(event.mark), cudaErrorNotReady);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return api("cudaEventSynchronize", [&] {
    Event& event = event_of(handle);
    forbid_captured(event);
    Scheduler::instance().wait({event.mark.operation});
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return api("cudaEventElapsedTime", [&] {
    require(ms);
    const Event& start = event_of(start_handle);
    const Event& end = event_of(end_handle);
    for (const Event* event : {&start, &end}) {
      require(event->mark.operation && !(event->flags & cudaEventDisableTiming),
              cudaErrorInvalidResourceHandle);
      require(Scheduler::instance().query(event->mark), cudaErrorNotReady);
    }
    *ms = std::chrono::duration<float, std::milli>(end.mark.operation->finished -
                                                   start.mark.operation->finished)
              .count();
  });
}
}

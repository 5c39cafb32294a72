#include "runtime/event.h"

#include <chrono>
#include <mutex>
#include <thread>
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

cudaEvent_t make_event(unsigned flags, std::shared_ptr<SharedEvent> shared) {
  Event* const event = new Event;
  event->device = current_device();
  event->flags = flags;
  event->shared = std::move(shared);
  const std::lock_guard lock(events().mutex);
  events().live.insert(event);
  return reinterpret_cast<cudaEvent_t>(event);
}

Event& event_of(cudaEvent_t handle) {
  Event* const event = reinterpret_cast<Event*>(handle);
  const std::lock_guard lock(events().mutex);
  require(events().live.contains(event), cudaErrorInvalidResourceHandle);
  return *event;
}

void record_event(cudaEvent_t handle, Stream& stream, unsigned flags) {
  Event& event = event_of(handle);
  require(event.device == stream.device, cudaErrorInvalidResourceHandle);
  if (capture_record(stream, event, (flags & cudaEventRecordExternal) != 0)) return;
  event.capture.reset();
  event.nodes.clear();
  if (event.shared) {
    event.shared_record = SharedEvent::record(event.shared, stream, event.mark);
  } else {
    event.mark = Scheduler::instance().record(stream, !(event.flags & cudaEventDisableTiming));
  }
}

}  // namespace emulator

using namespace emulator;

namespace {

void create(cudaEvent_t* handle, unsigned flags) {
  require(handle);
  require((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)) == 0);
  const bool interprocess = flags & cudaEventInterprocess;
  require(!interprocess || (flags & cudaEventDisableTiming));
  *handle = make_event(flags, interprocess ? std::make_shared<SharedEvent>() : nullptr);
}

/// The record of another process that the event stands for now, or 0.
std::uint64_t foreign_record(const Event& event) {
  const std::uint64_t last = event.shared ? event.shared->last() : 0;
  return last == event.shared_record ? 0 : last;
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
  return api("cudaEventRecord", [&] { record_event(event, stream_of(stream), cudaEventRecordDefault); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return api("cudaEventRecordWithFlags", [&] { record_event(event, stream_of(stream), flags); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned flags) {
  return api("cudaStreamWaitEvent", [&] {
    Event& event = event_of(event_handle);
    Stream& stream = stream_of(stream_handle);
    if (capture_wait(stream, event, (flags & cudaEventWaitExternal) != 0)) return;
    if (const std::uint64_t foreign = foreign_record(event)) {
      SharedEvent::wait(event.shared, stream, foreign);
      return;
    }
    if (event.mark.operation) Scheduler::instance().enqueue(stream, nullptr, event.mark);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return api("cudaEventQuery", [&] {
    Event& event = event_of(handle);
    forbid_captured(event);
    if (const std::uint64_t foreign = foreign_record(event)) {
      require(event.shared->done(foreign), cudaErrorNotReady);
      return;
    }
    if (!event.mark.operation) return;
    require(Scheduler::instance().query(event.mark), cudaErrorNotReady);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return api("cudaEventSynchronize", [&] {
    Event& event = event_of(handle);
    forbid_captured(event);
    if (const std::uint64_t foreign = foreign_record(event)) {
      while (!event.shared->done(foreign)) std::this_thread::sleep_for(std::chrono::microseconds(100));
      return;
    }
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

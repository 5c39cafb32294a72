#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/ipc.h"
#include "runtime/scheduler.h"

namespace emulator {

struct GraphNode;
struct StreamCapture;

struct Event {
  int device = 0;
  unsigned flags = 0;
  Mark mark;
  std::shared_ptr<SharedEvent> shared;  ///< of events with cudaEventInterprocess
  std::uint64_t shared_record = 0;      ///< which of its records `mark` is
  /// After a record in a captured stream: the capture and the nodes that the event stands for.
  std::weak_ptr<StreamCapture> capture;
  std::vector<GraphNode*> nodes;
};

cudaEvent_t make_event(unsigned flags, std::shared_ptr<SharedEvent> shared);
/// Records the event in the stream, or in the graph that the stream is captured into. Throws ApiError.
void record_event(cudaEvent_t event, Stream& stream, unsigned flags);
/// Throws ApiError for what is no event.
Event& event_of(cudaEvent_t handle);

}  // namespace emulator

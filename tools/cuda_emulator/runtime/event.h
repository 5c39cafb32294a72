#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/scheduler.h"

namespace emulator {

struct GraphNode;
struct StreamCapture;

struct Event {
  int device = 0;
  unsigned flags = 0;
  Mark mark;
  /// After a record in a captured stream: the capture and the nodes that the event stands for.
  std::weak_ptr<StreamCapture> capture;
  std::vector<GraphNode*> nodes;
};

/// Throws ApiError for what is no event.
Event& event_of(cudaEvent_t handle);

}  // namespace emulator

#include "runtime/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "runtime/api.h"
#include "runtime/copy.h"
#include "runtime/graph.h"
#include "runtime/host_work.h"

namespace emulator {
namespace {

/// Guards all captures. Recursive, since errors are raised while it is held.
std::recursive_mutex& mutex() {
  static auto* const instance = new std::recursive_mutex;
  return *instance;
}
using Lock = std::lock_guard<std::recursive_mutex>;

std::set<StreamCapture*>& active() {
  static auto* const instance = new std::set<StreamCapture*>;
  return *instance;
}
std::atomic<int> active_count{0};
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

[[noreturn]] void invalidate(StreamCapture& capture, cudaError_t error) {
  capture.invalid = true;
  throw ApiError{error};
}

StreamCapture& capture_of(Stream& stream) {
  require(!stream.capture->invalid, cudaErrorStreamCaptureInvalidated);
  return *stream.capture;
}

/// Work for the legacy default stream would wait for the captured streams, which never run.
void check_legacy(const Stream& stream) {
  if (!stream.legacy || active_count == 0) return;
  const Lock lock(mutex());
  for (StreamCapture* const capture : active()) {
    for (const auto& [captured, tips] : capture->tips) {
      if (captured->blocking && captured->device == stream.device &&
          capture->mode != cudaStreamCaptureModeRelaxed) {
        invalidate(*capture, cudaErrorStreamCaptureImplicit);
      }
    }
  }
}

cudaGraphNodeType type_of(const Work& work) {
  if (dynamic_cast<const CopyWork*>(&work)) return cudaGraphNodeTypeMemcpy;
  if (dynamic_cast<const FillWork*>(&work)) return cudaGraphNodeTypeMemset;
  if (dynamic_cast<const HostWork*>(&work)) return cudaGraphNodeTypeHost;
  return cudaGraphNodeTypeKernel;
}

/// Whether every node of `nodes` is one of `ends` or comes before one.
bool joined(const std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& ends) {
  std::set<const GraphNode*> before(ends.begin(), ends.end());
  std::vector<const GraphNode*> stack(ends.begin(), ends.end());
  while (!stack.empty()) {
    const GraphNode* const node = stack.back();
    stack.pop_back();
    for (const GraphNode* const d : node->dependencies) {
      if (before.insert(d).second) stack.push_back(d);
    }
  }
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const GraphNode* node) { return before.contains(node); });
}

}  // namespace

bool capturing(const Stream& stream) {
  if (active_count == 0) return false;
  const Lock lock(mutex());
  return stream.capture != nullptr;
}

Graph& captured_graph(Stream& stream) {
  const Lock lock(mutex());
  return *capture_of(stream).graph;
}

std::vector<GraphNode*> captured_tips(Stream& stream) {
  const Lock lock(mutex());
  return capture_of(stream).tips[&stream];
}

void follow(Stream& stream, GraphNode& node) {
  const Lock lock(mutex());
  capture_of(stream).tips[&stream] = {&node};
}

GraphNode& capture_node(Stream& stream, cudaGraphNodeType type) {
  const Lock lock(mutex());
  StreamCapture& capture = capture_of(stream);
  GraphNode& node = capture.graph->add(type, capture.tips[&stream]);
  node.device = stream.device;
  capture.tips[&stream] = {&node};
  return node;
}

OperationPtr submit(Stream& stream, std::shared_ptr<Work> work) {
  if (capturing(stream)) {
    const Lock lock(mutex());
    GraphNode& node = capture_node(stream, type_of(*work));
    node.work = std::move(work);
    return nullptr;
  }
  check_legacy(stream);
  return Scheduler::instance().enqueue(stream, std::move(work));
}

void forbid_in_capture() {
  if (active_count == 0 || thread_mode == cudaStreamCaptureModeRelaxed) return;
  const Lock lock(mutex());
  for (StreamCapture* const capture : active()) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbidden =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (forbidden) invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
}

void forbid_in_capture(Stream& stream) {
  if (active_count == 0) return;
  const Lock lock(mutex());
  if (stream.capture) invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
  check_legacy(stream);
}

bool capture_record(Stream& stream, Event& event, bool external) {
  if (!capturing(stream)) {
    check_legacy(stream);
    return false;
  }
  const Lock lock(mutex());
  StreamCapture& capture = capture_of(stream);
  if (external) {
    capture_node(stream, cudaGraphNodeTypeEventRecord).event = reinterpret_cast<cudaEvent_t>(&event);
    return true;
  }
  event.capture = stream.capture;
  event.nodes = capture.tips[&stream];
  return true;
}

bool capture_wait(Stream& stream, Event& event, bool external) {
  if (active_count == 0) return false;
  const Lock lock(mutex());
  if (external && stream.capture) {
    capture_node(stream, cudaGraphNodeTypeWaitEvent).event = reinterpret_cast<cudaEvent_t>(&event);
    return true;
  }
  const std::shared_ptr<StreamCapture> source = event.capture.lock();
  if (!source) {
    if (!stream.capture) {
      check_legacy(stream);
      return false;
    }
    if (!event.mark.operation) return true;  // never recorded: nothing to wait for
    invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  }
  if (stream.legacy) invalidate(*source, cudaErrorStreamCaptureImplicit);
  if (stream.capture && stream.capture != source) {
    stream.capture->invalid = true;
    invalidate(*source, cudaErrorStreamCaptureMerge);
  }
  require(!source->invalid, cudaErrorStreamCaptureInvalidated);
  stream.capture = source;
  std::vector<GraphNode*>& tips = source->tips[&stream];
  for (GraphNode* const node : event.nodes) {
    if (std::find(tips.begin(), tips.end(), node) == tips.end()) tips.push_back(node);
  }
  return true;
}

void leave_capture(Stream& stream) {
  if (active_count == 0) return;
  const Lock lock(mutex());
  if (!stream.capture) return;
  StreamCapture& capture = *stream.capture;
  if (capture.origin == &stream) invalidate(capture, cudaErrorStreamCaptureUnsupported);
  const std::vector<GraphNode*>& tips = capture.tips[&stream];
  capture.departed.insert(capture.departed.end(), tips.begin(), tips.end());
  capture.tips.erase(&stream);
  stream.capture.reset();
}

void forbid_captured(const Event& event) {
  if (active_count == 0) return;
  const Lock lock(mutex());
  const std::shared_ptr<StreamCapture> capture = event.capture.lock();
  if (capture) invalidate(*capture, cudaErrorCapturedEvent);
}

}  // namespace emulator

using namespace emulator;

namespace {

void begin_capture(Stream& stream, Graph* graph, const std::vector<GraphNode*>& after,
                   cudaStreamCaptureMode mode) {
  static unsigned long long ids = 0;
  require(!stream.legacy, cudaErrorStreamCaptureUnsupported);
  const Lock lock(mutex());
  require(!stream.capture, cudaErrorIllegalState);
  auto capture = std::make_shared<StreamCapture>();
  capture->id = ++ids;
  capture->owned = !graph;
  capture->graph = graph ? graph : new Graph;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->tips[&stream] = after;
  active().insert(capture.get());
  ++active_count;
  stream.capture = std::move(capture);
}

Graph* end_capture(Stream& stream) {
  const Lock lock(mutex());
  require(stream.capture != nullptr, cudaErrorIllegalState);
  const std::shared_ptr<StreamCapture> capture = stream.capture;
  require(capture->origin == &stream, cudaErrorStreamCaptureUnmatched);
  require(capture->mode == cudaStreamCaptureModeRelaxed || capture->thread == std::this_thread::get_id(),
          cudaErrorStreamCaptureWrongThread);
  active().erase(capture.get());
  --active_count;
  cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (!error && !joined(capture->departed, capture->tips[&stream])) error = cudaErrorStreamCaptureUnjoined;
  for (const auto& [member, tips] : capture->tips) {
    member->capture.reset();
    if (!error && !joined(tips, capture->tips[&stream])) error = cudaErrorStreamCaptureUnjoined;
  }
  if (error && capture->owned) delete capture->graph;
  require(!error, error);
  return capture->graph;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return api("cudaStreamBeginCapture", [&] { begin_capture(stream_of(stream), nullptr, {}, mode); });
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* nodes, const cudaGraphEdgeData*,
                                          std::size_t count, cudaStreamCaptureMode mode) {
  return api("cudaStreamBeginCaptureToGraph",
             [&] { begin_capture(stream_of(stream), &graph_of(graph), nodes_of(nodes, count), mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return api("cudaStreamEndCapture", [&] {
    require(graph);
    *graph = nullptr;
    *graph = handle_of(*end_capture(stream_of(stream)));
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return api("cudaStreamIsCapturing", [&] {
    require(status);
    Stream& stream = stream_of(handle);
    check_legacy(stream);
    const Lock lock(mutex());
    *status = !stream.capture           ? cudaStreamCaptureStatusNone
              : stream.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  return api("cudaStreamGetCaptureInfo", [&] {
    require(status);
    Stream& stream = stream_of(handle);
    check_legacy(stream);
    const Lock lock(mutex());
    StreamCapture* const capture = stream.capture.get();
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    if (!capture || capture->invalid) return;
    capture->listed.clear();
    for (GraphNode* const node : capture->tips[&stream]) capture->listed.push_back(handle_of(*node));
    if (id) *id = capture->id;
    if (graph) *graph = handle_of(*capture->graph);
    if (dependencies) *dependencies = capture->listed.data();
    if (edges) *edges = nullptr;
    if (count) *count = capture->listed.size();
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData*, std::size_t count, unsigned flags) {
  return api("cudaStreamUpdateCaptureDependencies", [&] {
    Stream& stream = stream_of(handle);
    const Lock lock(mutex());
    require(stream.capture != nullptr, cudaErrorIllegalState);
    std::vector<GraphNode*>& tips = capture_of(stream).tips[&stream];
    if (flags == cudaStreamSetCaptureDependencies) tips.clear();
    for (GraphNode* const node : nodes_of(nodes, count)) tips.push_back(node);
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return api("cudaThreadExchangeStreamCaptureMode", [&] {
    require(mode);
    std::swap(*mode, thread_mode);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return api("cudaGraphLaunch", [&] {
    Stream& stream = stream_of(handle);
    GraphExec& launched = exec_of(exec);
    if (capturing(stream)) {
      capture_node(stream, cudaGraphNodeTypeGraph).child = launched.graph->clone();
      return;
    }
    check_legacy(stream);
    launch_graph(launched, stream);
  });
}
}

#pragma once
#include <cuda_runtime_api.h>

#include <map>
#include <thread>
#include <vector>

#include "runtime/event.h"
#include "runtime/scheduler.h"

namespace emulator {

struct Graph;
struct GraphNode;

/// A capture under way: the streams that take part, with the nodes that their next node will follow.
struct StreamCapture {
  unsigned long long id = 0;
  Graph* graph = nullptr;
  bool owned = false;  ///< the graph was made for the capture, not given by the program
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool invalid = false;
  std::map<Stream*, std::vector<GraphNode*>> tips;
  std::vector<GraphNode*> departed;     ///< tips of streams that were destroyed meanwhile
  std::vector<cudaGraphNode_t> listed;  ///< what cudaStreamGetCaptureInfo gave out last
};

/// Whether what is sent into the stream becomes nodes of a graph.
bool capturing(const Stream& stream);
/// Adds a node behind the stream's nodes. Throws ApiError when the capture is invalid.
GraphNode& capture_node(Stream& stream, cudaGraphNodeType type);
/// The graph and the nodes to follow, for nodes that are made elsewhere; `follow` makes such a node the stream's last.
Graph& captured_graph(Stream& stream);
std::vector<GraphNode*> captured_tips(Stream& stream);
void follow(Stream& stream, GraphNode& node);

/// Event record and wait where the stream is captured, or the event comes from a captured stream. `external`: the record or wait becomes a
/// node. Returns false when nothing is captured: the caller goes on.
bool capture_record(Stream& stream, Event& event, bool external);
bool capture_wait(Stream& stream, Event& event, bool external);
/// Takes a stream that is about to be destroyed out of its capture, which goes on without it; what the stream captured must be joined
/// all the same. Fails for the stream that began the capture.
void leave_capture(Stream& stream);
/// Fails with cudaErrorCapturedEvent when the last record of the event was captured.
void forbid_captured(const Event& event);

}  // namespace emulator

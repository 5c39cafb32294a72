#pragma once
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "runtime/api.h"
#include "runtime/event.h"
#include "runtime/scheduler.h"

namespace emulator {

struct Graph;
struct Allocation;

/// Memory of an allocation node: one address for all launches, which lives as long as a graph or executable graph names it, and as long as a
/// launch has left it allocated.
struct GraphMemory {
  Allocation* allocation = nullptr;
  bool freed_in_graph = false;  ///< a free node of the same graph ends each launch's use
  cudaMemAllocNodeParams params{};
  ~GraphMemory();
};

struct GraphNode {
  Graph* graph = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  int device = 0;
  bool enabled = true;
  std::shared_ptr<Work> work;           ///< kernel, copy, fill, host function, library call
  std::shared_ptr<Graph> child;         ///< cudaGraphNodeTypeGraph
  cudaEvent_t event = nullptr;          ///< record and wait nodes
  std::shared_ptr<GraphMemory> memory;  ///< allocation nodes
  void* freed = nullptr;                ///< free nodes
  std::vector<GraphNode*> dependencies, dependents;
  const GraphNode* origin = nullptr;  ///< the node that this one is a clone of
};

/// cudaUserObject_t: a reference count with a destructor.
struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  unsigned count;
};
void release(UserObject& object, unsigned count);

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  ///< in order of creation
  std::map<UserObject*, unsigned> objects;
  ~Graph();

  GraphNode& add(cudaGraphNodeType type, const std::vector<GraphNode*>& dependencies);
  void connect(GraphNode& from, GraphNode& to);
  void disconnect(GraphNode& from, GraphNode& to);
  void remove(GraphNode& node);
  std::unique_ptr<Graph> clone() const;
  /// Nodes after all they depend on. Throws ApiError for a cycle.
  std::vector<GraphNode*> sorted() const;
  /// The clone of a node in this graph or in the graphs of its nodes. Throws ApiError when there is none.
  GraphNode& clone_of(const GraphNode* node);
};

struct GraphExec {
  std::unique_ptr<Graph> graph;  ///< a clone
  unsigned long long flags = 0;
  std::vector<StreamKey> chains;  ///< of the flat nodes, for the order of operations
  OperationPtr last;              ///< end of the last launch
};

inline Graph& graph_of(cudaGraph_t handle) {
  require(handle);
  return *reinterpret_cast<Graph*>(handle);
}
inline GraphNode& node_of(cudaGraphNode_t handle) {
  require(handle);
  return *reinterpret_cast<GraphNode*>(handle);
}
inline GraphExec& exec_of(cudaGraphExec_t handle) {
  require(handle);
  return *reinterpret_cast<GraphExec*>(handle);
}
inline cudaGraph_t handle_of(Graph& graph) { return reinterpret_cast<cudaGraph_t>(&graph); }
inline cudaGraphNode_t handle_of(GraphNode& node) { return reinterpret_cast<cudaGraphNode_t>(&node); }
std::vector<GraphNode*> nodes_of(const cudaGraphNode_t* handles, std::size_t count);

/// Memory for an allocation node. `guests`: other devices that may use it, a bit each. Throws ApiError when the device is full.
std::shared_ptr<GraphMemory> allocate_graph_memory(std::size_t bytes, int device, std::uint64_t guests);
/// Whether the pointer is memory of a graph; then what a launch has left allocated counts as freed.
bool free_graph_memory(void* pointer);
/// Adds nodes that allocate and free.
GraphNode& add_alloc_node(Graph& graph, const std::vector<GraphNode*>& dependencies, std::size_t bytes,
                          int device, std::uint64_t guests);
GraphNode& add_free_node(Graph& graph, const std::vector<GraphNode*>& dependencies, void* pointer);

/// Appends one launch to the stream. Throws ApiError.
void launch_graph(GraphExec& exec, Stream& stream);

/// Parameters of nodes from and to the API's structures. Throw ApiError when the node is of another type.
std::shared_ptr<Work> work_of(const cudaKernelNodeParams& params);
std::shared_ptr<Work> work_of(const cudaMemcpy3DParms& params);
std::shared_ptr<Work> work_of(const cudaMemsetParams& params);
std::shared_ptr<Work> work_of(const cudaHostNodeParams& params);
cudaKernelNodeParams kernel_params(const GraphNode& node);
cudaMemcpy3DParms copy_params(const GraphNode& node);
cudaMemsetParams fill_params(const GraphNode& node);
cudaHostNodeParams host_params(const GraphNode& node);

}  // namespace emulator

#include "runtime/graph.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <unordered_map>

#include "memory/address_space.h"

namespace emulator {
namespace {

/// Memory of graphs by address; `held` is set while a launch has left it allocated.
struct Memories {
  struct Entry {
    const Allocation* allocation = nullptr;
    std::weak_ptr<GraphMemory> memory;
    std::shared_ptr<GraphMemory> held;
  };
  std::mutex mutex;
  std::map<std::uint64_t, Entry> by_address;
};
Memories& memories() {
  static Memories* const instance = new Memories;
  return *instance;
}

/// What a launch of the graph does to its memory: fails when an earlier launch has left it allocated.
void take_memory(const Graph& graph, bool free_first) {
  for (const auto& node : graph.nodes) {
    if (node->child) take_memory(*node->child, free_first);
    if (node->type == cudaGraphNodeTypeMemFree) free_graph_memory(node->freed);
    if (!node->memory || node->memory->freed_in_graph) continue;
    const std::lock_guard lock(memories().mutex);
    Memories::Entry& entry = memories().by_address[node->memory->allocation->begin];
    require(!entry.held || free_first);
    entry.held = node->memory;
  }
}

/// Appends the graph's nodes to a flat list; nodes without dependencies follow `before`. Returns the places at which the graph ends.
std::vector<std::size_t> flatten(const Graph& graph, const std::vector<std::size_t>& before,
                                 std::vector<Scheduler::Node>& flat) {
  std::unordered_map<const GraphNode*, std::vector<std::size_t>> ends;
  std::set<std::size_t> sinks;
  for (const GraphNode* const node : graph.sorted()) {
    std::set<std::size_t> after;
    for (const GraphNode* const dependency : node->dependencies) {
      after.insert(ends[dependency].begin(), ends[dependency].end());
    }
    if (node->dependencies.empty()) after.insert(before.begin(), before.end());
    std::vector<std::size_t> places(after.begin(), after.end());
    if (node->child) {
      ends[node] = flatten(*node->child, places, flat);
      if (node->child->nodes.empty()) ends[node] = places;
    } else {
      Scheduler::Node item{
          node->enabled ? node->work : nullptr, node->device, 0, std::move(places), {}, nullptr};
      if (node->type == cudaGraphNodeTypeWaitEvent) item.wait = event_of(node->event).mark;
      if (node->type == cudaGraphNodeTypeEventRecord) item.marks = &event_of(node->event).mark;
      flat.push_back(std::move(item));
      ends[node] = {flat.size() - 1};
    }
    if (node->dependents.empty()) sinks.insert(ends[node].begin(), ends[node].end());
  }
  return {sinks.begin(), sinks.end()};
}

/// Splits the flat nodes into chains, each of which is ordered: nodes of one chain share a key in the order of operations.
std::vector<StreamKey> chains_of(const std::vector<Scheduler::Node>& flat) {
  std::vector<StreamKey> chains(flat.size());
  std::vector<bool> continued(flat.size());
  for (std::size_t i = 0; i < flat.size(); ++i) {
    for (const std::size_t p : flat[i].after) {
      if (continued[p]) continue;
      continued[p] = true;
      chains[i] = chains[p];
      break;
    }
    if (!chains[i]) chains[i] = Scheduler::instance().new_key();
  }
  return chains;
}

std::unique_ptr<GraphExec> instantiate(const Graph& graph, unsigned long long flags) {
  auto exec = std::make_unique<GraphExec>();
  exec->graph = graph.clone();
  exec->flags = flags;
  std::vector<Scheduler::Node> flat;
  flatten(*exec->graph, {}, flat);
  exec->chains = chains_of(flat);
  return exec;
}

struct UpdateFailure {
  cudaGraphExecUpdateResult result;
  const GraphNode* node;
};

/// Gives the nodes of `to` the work of the nodes of `from`, which must have the same shape.
void update(Graph& to, const Graph& from) {
  const auto number = [](const Graph& graph, const GraphNode* node) {
    return std::find_if(graph.nodes.begin(), graph.nodes.end(),
                        [&](const auto& n) { return n.get() == node; }) -
           graph.nodes.begin();
  };
  if (to.nodes.size() != from.nodes.size())
    throw UpdateFailure{cudaGraphExecUpdateErrorTopologyChanged, nullptr};
  for (std::size_t i = 0; i < to.nodes.size(); ++i) {
    const GraphNode& a = *to.nodes[i];
    const GraphNode& b = *from.nodes[i];
    if (a.type != b.type) throw UpdateFailure{cudaGraphExecUpdateErrorNodeTypeChanged, &b};
    std::set<std::ptrdiff_t> a_after, b_after;
    for (const GraphNode* n : a.dependencies) a_after.insert(number(to, n));
    for (const GraphNode* n : b.dependencies) b_after.insert(number(from, n));
    if (a_after != b_after) throw UpdateFailure{cudaGraphExecUpdateErrorTopologyChanged, &b};
    if (a.device != b.device) throw UpdateFailure{cudaGraphExecUpdateErrorNotSupported, &b};
  }
  for (std::size_t i = 0; i < to.nodes.size(); ++i) {
    GraphNode& a = *to.nodes[i];
    const GraphNode& b = *from.nodes[i];
    if (a.child) update(*a.child, *b.child);
    a.work = b.work;
    a.event = b.event;
  }
}

const char* name_of(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "memcpy";
    case cudaGraphNodeTypeMemset:
      return "memset";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeGraph:
      return "graph";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeWaitEvent:
      return "wait event";
    case cudaGraphNodeTypeEventRecord:
      return "event record";
    case cudaGraphNodeTypeMemAlloc:
      return "memory allocation";
    case cudaGraphNodeTypeMemFree:
      return "memory free";
    default:
      return "node";
  }
}

/// Copies handles out as the API's listing functions do: with a null list only the number is given.
void list(const std::vector<GraphNode*>& nodes, cudaGraphNode_t* handles, std::size_t* count) {
  require(count);
  if (handles) {
    for (std::size_t i = 0; i < *count; ++i) handles[i] = i < nodes.size() ? handle_of(*nodes[i]) : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
}

}  // namespace

GraphMemory::~GraphMemory() {
  {
    const std::lock_guard lock(memories().mutex);
    memories().by_address.erase(allocation->begin);
  }
  AddressSpace::instance().free(*allocation);
}

std::shared_ptr<GraphMemory> allocate_graph_memory(std::size_t bytes, int device, std::uint64_t guests) {
  Allocation* const allocation =
      AddressSpace::instance().allocate(AllocationKind::stream_ordered, device, bytes, "memory of a graph");
  require(allocation, cudaErrorMemoryAllocation);
  allocation->guests = guests;
  auto memory = std::make_shared<GraphMemory>();
  memory->allocation = allocation;
  const std::lock_guard lock(memories().mutex);
  memories().by_address[allocation->begin] = {allocation, memory, nullptr};
  return memory;
}

bool free_graph_memory(void* pointer) {
  std::shared_ptr<GraphMemory> released;  // its destructor takes the mutex
  const std::lock_guard lock(memories().mutex);
  const auto found = memories().by_address.find(reinterpret_cast<std::uint64_t>(pointer));
  if (found == memories().by_address.end()) return false;
  released = std::move(found->second.held);
  return true;
}

GraphNode& add_alloc_node(Graph& graph, const std::vector<GraphNode*>& dependencies, std::size_t bytes,
                          int device, std::uint64_t guests) {
  const std::shared_ptr<GraphMemory> memory = allocate_graph_memory(bytes, device, guests);
  GraphNode& node = graph.add(cudaGraphNodeTypeMemAlloc, dependencies);
  node.memory = memory;
  memory->params.bytesize = bytes;
  memory->params.dptr = reinterpret_cast<void*>(memory->allocation->begin);
  return node;
}

GraphNode& add_free_node(Graph& graph, const std::vector<GraphNode*>& dependencies, void* pointer) {
  std::shared_ptr<GraphMemory> memory;
  {
    const std::lock_guard lock(memories().mutex);
    const auto found = memories().by_address.find(reinterpret_cast<std::uint64_t>(pointer));
    require(found != memories().by_address.end());
    memory = found->second.memory.lock();
  }
  for (const auto& node : graph.nodes) {
    if (node->memory == memory) memory->freed_in_graph = true;
  }
  GraphNode& node = graph.add(cudaGraphNodeTypeMemFree, dependencies);
  node.freed = pointer;
  return node;
}

void release(UserObject& object, unsigned count) {
  require(count <= object.count);
  object.count -= count;
  if (object.count) return;
  object.destroy(object.pointer);
  delete &object;
}

Graph::~Graph() {
  for (const auto& [object, count] : objects) release(*object, count);
}

GraphNode& Graph::add(cudaGraphNodeType type, const std::vector<GraphNode*>& dependencies) {
  for (const GraphNode* node : dependencies) require(node && node->graph == this);
  nodes.push_back(std::make_unique<GraphNode>());
  GraphNode& node = *nodes.back();
  node.graph = this;
  node.type = type;
  node.device = current_device();
  for (GraphNode* const before : dependencies) connect(*before, node);
  return node;
}

void Graph::connect(GraphNode& from, GraphNode& to) {
  if (std::find(to.dependencies.begin(), to.dependencies.end(), &from) != to.dependencies.end()) return;
  to.dependencies.push_back(&from);
  from.dependents.push_back(&to);
}

void Graph::disconnect(GraphNode& from, GraphNode& to) {
  std::erase(to.dependencies, &from);
  std::erase(from.dependents, &to);
}

void Graph::remove(GraphNode& node) {
  while (!node.dependencies.empty()) disconnect(*node.dependencies.back(), node);
  while (!node.dependents.empty()) disconnect(node, *node.dependents.back());
  std::erase_if(nodes, [&](const auto& n) { return n.get() == &node; });
}

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>();
  std::unordered_map<const GraphNode*, GraphNode*> twins;
  for (const auto& node : nodes) {
    auto twin = std::make_unique<GraphNode>(*node);
    twin->graph = copy.get();
    twin->origin = node.get();
    if (node->child) twin->child = node->child->clone();
    twins[node.get()] = twin.get();
    copy->nodes.push_back(std::move(twin));
  }
  for (const auto& twin : copy->nodes) {
    for (GraphNode*& n : twin->dependencies) n = twins.at(n);
    for (GraphNode*& n : twin->dependents) n = twins.at(n);
  }
  copy->objects = objects;
  for (const auto& [object, count] : objects) object->count += count;
  return copy;
}

std::vector<GraphNode*> Graph::sorted() const {
  std::unordered_map<const GraphNode*, std::size_t> missing;
  std::vector<GraphNode*> order;
  for (const auto& node : nodes) {
    missing[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (GraphNode* const next : order[i]->dependents) {
      if (--missing[next] == 0) order.push_back(next);
    }
  }
  require(order.size() == nodes.size());
  return order;
}

GraphNode& Graph::clone_of(const GraphNode* node) {
  std::vector<Graph*> graphs{this};
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    for (const auto& candidate : graphs[i]->nodes) {
      if (candidate->origin == node) return *candidate;
      if (candidate->child) graphs.push_back(candidate->child.get());
    }
  }
  throw ApiError{cudaErrorInvalidValue};
}

std::vector<GraphNode*> nodes_of(const cudaGraphNode_t* handles, std::size_t count) {
  require(handles || count == 0);
  std::vector<GraphNode*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(&node_of(handles[i]));
  return nodes;
}

void launch_graph(GraphExec& exec, Stream& stream) {
  take_memory(*exec.graph, (exec.flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0);
  std::vector<Scheduler::Node> flat;
  flatten(*exec.graph, {}, flat);
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i].chain = exec.chains[i];
  exec.last = Scheduler::instance().enqueue_graph(stream, flat, exec.last);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return api("cudaGraphCreate", [&] {
    require(graph && flags == 0);
    *graph = handle_of(*new Graph);
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return api("cudaGraphDestroy", [&] { delete &graph_of(graph); });
}

cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return api("cudaGraphClone", [&] {
    require(clone);
    *clone = handle_of(*graph_of(graph).clone().release());
  });
}

cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original, cudaGraph_t clone) {
  return api("cudaGraphNodeFindInClone", [&] {
    require(node);
    *node = handle_of(graph_of(clone).clone_of(&node_of(original)));
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return api("cudaGraphNodeGetType", [&] {
    require(type);
    *type = node_of(node).type;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return api("cudaGraphGetNodes", [&] {
    std::vector<GraphNode*> all;
    for (const auto& node : graph_of(graph).nodes) all.push_back(node.get());
    list(all, nodes, count);
  });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return api("cudaGraphGetRootNodes", [&] {
    std::vector<GraphNode*> roots;
    for (const auto& node : graph_of(graph).nodes) {
      if (node->dependencies.empty()) roots.push_back(node.get());
    }
    list(roots, nodes, count);
  });
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* data, std::size_t* count) {
  return api("cudaGraphGetEdges", [&] {
    require(count);
    std::vector<GraphNode*> sources, targets;
    for (const auto& node : graph_of(graph).nodes) {
      for (GraphNode* const next : node->dependents) {
        sources.push_back(node.get());
        targets.push_back(next);
      }
    }
    const std::size_t room = *count;
    list(sources, from, count);
    std::size_t again = room;
    list(targets, to, &again);
    if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  });
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* data, std::size_t* count) {
  return api("cudaGraphNodeGetDependencies", [&] {
    list(node_of(node).dependencies, nodes, count);
    if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  });
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                           cudaGraphEdgeData* data, std::size_t* count) {
  return api("cudaGraphNodeGetDependentNodes", [&] {
    list(node_of(node).dependents, nodes, count);
    if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*, std::size_t count) {
  return api("cudaGraphAddDependencies", [&] {
    const std::vector<GraphNode*> sources = nodes_of(from, count), targets = nodes_of(to, count);
    for (std::size_t i = 0; i < count; ++i) graph_of(graph).connect(*sources[i], *targets[i]);
  });
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                        std::size_t count) {
  return api("cudaGraphRemoveDependencies", [&] {
    const std::vector<GraphNode*> sources = nodes_of(from, count), targets = nodes_of(to, count);
    for (std::size_t i = 0; i < count; ++i) graph_of(graph).disconnect(*sources[i], *targets[i]);
  });
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return api("cudaGraphDestroyNode", [&] { node_of(node).graph->remove(node_of(node)); });
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  return api("cudaGraphDebugDotPrint", [&] {
    require(path);
    std::FILE* const file = std::fopen(path, "w");
    require(file, cudaErrorOperatingSystem);
    std::fputs("digraph graph_0 {\n", file);
    for (const auto& node : graph_of(graph).nodes) {
      const std::string label = node->work ? node->work->name() : name_of(node->type);
      std::fprintf(file, "  n%p [label=\"%s\"];\n", static_cast<const void*>(node.get()), label.c_str());
      for (const GraphNode* const next : node->dependents) {
        std::fprintf(file, "  n%p -> n%p;\n", static_cast<const void*>(node.get()),
                     static_cast<const void*>(next));
      }
    }
    std::fputs("}\n", file);
    std::fclose(file);
  });
}

// Executable graphs.

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return api("cudaGraphInstantiate", [&] {
    require(exec);
    require(!(flags & cudaGraphInstantiateFlagDeviceLaunch), cudaErrorNotSupported);
    *exec = reinterpret_cast<cudaGraphExec_t>(instantiate(graph_of(graph), flags).release());
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* params) {
  return api("cudaGraphInstantiateWithParams", [&] {
    require(exec && params);
    params->errNode_out = nullptr;
    params->result_out = cudaGraphInstantiateError;
    const cudaError_t error = cudaGraphInstantiate(exec, graph, params->flags);
    require(error == cudaSuccess, error);
    params->result_out = cudaGraphInstantiateSuccess;
  });
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  return api("cudaGraphExecGetFlags", [&] {
    require(flags);
    *flags = exec_of(exec).flags;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return api("cudaGraphExecDestroy", [&] {
    GraphExec& e = exec_of(exec);
    // A launch that is under way keeps what it runs, but not memory that the graph owns.
    Scheduler::instance().wait({e.last}, false);
    delete &e;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return api("cudaGraphUpload", [&] {
    exec_of(exec);
    stream_of(stream);
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  return api("cudaGraphExecUpdate", [&] {
    require(info);
    *info = {};
    info->result = cudaGraphExecUpdateSuccess;
    try {
      update(*exec_of(exec).graph, graph_of(graph));
    } catch (const UpdateFailure& failure) {
      info->result = failure.result;
      info->errorNode = reinterpret_cast<cudaGraphNode_t>(const_cast<GraphNode*>(failure.node));
      throw ApiError{cudaErrorGraphExecUpdateFailure};
    }
  });
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
  return api("cudaGraphNodeSetEnabled", [&] {
    GraphNode& twin = exec_of(exec).graph->clone_of(&node_of(node));
    require(twin.type == cudaGraphNodeTypeKernel || twin.type == cudaGraphNodeTypeMemset ||
            twin.type == cudaGraphNodeTypeMemcpy);
    twin.enabled = enabled != 0;
  });
}

cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled) {
  return api("cudaGraphNodeGetEnabled", [&] {
    require(enabled);
    *enabled = exec_of(exec).graph->clone_of(&node_of(node)).enabled;
  });
}

// User objects.

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy,
                                 unsigned count, unsigned) {
  return api("cudaUserObjectCreate", [&] {
    require(object && destroy && count);
    *object = reinterpret_cast<cudaUserObject_t>(new UserObject{pointer, destroy, count});
  });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  return api("cudaUserObjectRetain", [&] {
    require(object && count);
    reinterpret_cast<UserObject*>(object)->count += count;
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return api("cudaUserObjectRelease", [&] {
    require(object && count);
    release(*reinterpret_cast<UserObject*>(object), count);
  });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count,
                                      unsigned flags) {
  return api("cudaGraphRetainUserObject", [&] {
    require(handle && count);
    UserObject* const object = reinterpret_cast<UserObject*>(handle);
    if (!(flags & cudaGraphUserObjectMove)) object->count += count;
    graph_of(graph).objects[object] += count;
  });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count) {
  return api("cudaGraphReleaseUserObject", [&] {
    require(handle && count);
    UserObject* const object = reinterpret_cast<UserObject*>(handle);
    auto& objects = graph_of(graph).objects;
    require(objects.contains(object) && objects[object] >= count);
    if ((objects[object] -= count) == 0) objects.erase(object);
    release(*object, count);
  });
}

// Memory of graphs. High-water marks are not kept: they equal the present use.

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType which, void* value) {
  return api("cudaDeviceGetGraphMemAttribute", [&] {
    require(value && device >= 0 && device < device_count() && which >= 0 &&
            which <= cudaGraphMemAttrReservedMemHigh);
    std::uint64_t bytes = 0;
    const std::lock_guard lock(memories().mutex);
    for (const auto& [address, entry] : memories().by_address) {
      if (entry.allocation->device == device) bytes += entry.allocation->bytes;
    }
    *static_cast<std::uint64_t*>(value) = bytes;
  });
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType which, void* value) {
  return api("cudaDeviceSetGraphMemAttribute", [&] {
    require(value && device >= 0 && device < device_count());
    require(which == cudaGraphMemAttrUsedMemHigh || which == cudaGraphMemAttrReservedMemHigh);
  });
}
}

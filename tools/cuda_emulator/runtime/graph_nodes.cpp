#include <cuda_runtime_api.h>

#include "runtime/copy.h"
#include "runtime/graph.h"
#include "runtime/host_work.h"
#include "runtime/launch.h"

namespace emulator {
namespace {

template <class W>
const W& work_as(const GraphNode& node) {
  const W* const work = dynamic_cast<const W*>(node.work.get());
  require(work);
  return *work;
}

cudaPitchedPtr pitched(const Region& r, const Extent& e) {
  const std::size_t pitch = r.pitch ? r.pitch : e.width;
  return {reinterpret_cast<void*>(r.address), pitch, e.width, r.slice_pitch ? r.slice_pitch / pitch : e.rows};
}

}  // namespace

std::shared_ptr<Work> work_of(const cudaKernelNodeParams& p) {
  require(!p.extra, cudaErrorNotSupported);
  return make_kernel_work(p.func, p.gridDim, p.blockDim, p.kernelParams, p.sharedMemBytes, {},
                          current_device());
}

std::shared_ptr<Work> work_of(const cudaMemcpy3DParms& p) {
  require(!p.srcArray && !p.dstArray, cudaErrorNotSupported);
  const Box box = box_of(p.dstPtr, p.dstPos, p.srcPtr, p.srcPos, p.extent);
  check_copy(box.destination, box.source, box.extent, p.kind, "memcpy node");
  auto work = std::make_shared<CopyWork>(box.destination, box.source, box.extent, "memcpy node");
  work->kind = p.kind;
  return work;
}

std::shared_ptr<Work> work_of(const cudaMemsetParams& p) {
  require(p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4);
  const Region region{reinterpret_cast<std::uint64_t>(p.dst), p.pitch};
  const Extent extent{p.width * p.elementSize, p.height};
  check_fill(region, extent, "memset node");
  return std::make_shared<FillWork>(region, extent, p.value, p.elementSize, "memset node");
}

std::shared_ptr<Work> work_of(const cudaHostNodeParams& p) {
  require(p.fn);
  return std::make_shared<HostWork>(p.fn, p.userData);
}

cudaKernelNodeParams kernel_params(const GraphNode& node) {
  const KernelWork& work = work_as<KernelWork>(node);
  const auto dim = [](ptx::Dim3 d) { return dim3(d.x, d.y, d.z); };
  cudaKernelNodeParams p{};
  p.func = const_cast<void*>(work.registered->host);
  p.gridDim = dim(work.shape.grid);
  p.blockDim = dim(work.shape.block);
  p.sharedMemBytes = work.shape.dynamic_shared;
  p.kernelParams = const_cast<void**>(work.argument_pointers.data());
  return p;
}

cudaMemcpy3DParms copy_params(const GraphNode& node) {
  const CopyWork& work = work_as<CopyWork>(node);
  cudaMemcpy3DParms p{};
  p.dstPtr = pitched(work.destination, work.extent);
  p.srcPtr = pitched(work.source, work.extent);
  p.extent = {work.extent.width, work.extent.rows, work.extent.slices};
  p.kind = work.kind;
  return p;
}

cudaMemsetParams fill_params(const GraphNode& node) {
  const FillWork& work = work_as<FillWork>(node);
  cudaMemsetParams p{};
  p.dst = reinterpret_cast<void*>(work.destination.address);
  p.pitch = work.destination.pitch;
  p.value = work.value;
  p.elementSize = work.element_bytes;
  p.width = work.extent.width / work.element_bytes;
  p.height = work.extent.rows;
  return p;
}

cudaHostNodeParams host_params(const GraphNode& node) {
  const HostWork& work = work_as<HostWork>(node);
  return {work.function, work.data};
}

}  // namespace emulator

using namespace emulator;

namespace {

GraphNode& add(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
               cudaGraphNodeType type, std::shared_ptr<Work> work) {
  require(out);
  GraphNode& node = graph_of(graph).add(type, nodes_of(after, count));
  node.work = std::move(work);
  *out = handle_of(node);
  return node;
}

/// A new node's or an old node's work, when the node's type stays what it is.
void set_work(GraphNode& node, cudaGraphNodeType type, std::shared_ptr<Work> work) {
  require(node.type == type);
  node.work = std::move(work);
}

void set_event(GraphNode& node, cudaGraphNodeType type, cudaEvent_t event) {
  require(node.type == type);
  event_of(event);
  node.event = event;
}

cudaMemcpy3DParms linear_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms p{};
  p.dstPtr = {to, bytes, bytes, 1};
  p.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
  p.extent = {bytes, 1, 1};
  p.kind = kind;
  return p;
}

cudaMemcpy3DParms copy_to_symbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                                 cudaMemcpyKind kind) {
  return linear_copy(reinterpret_cast<void*>(symbol_region(symbol, offset, bytes).address), from, bytes,
                     kind);
}

cudaMemcpy3DParms copy_from_symbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                   cudaMemcpyKind kind) {
  return linear_copy(to, reinterpret_cast<void*>(symbol_region(symbol, offset, bytes).address), bytes, kind);
}

void set_params(GraphNode& node, const cudaGraphNodeParams& p) {
  require(node.type == p.type);
  switch (p.type) {
    case cudaGraphNodeTypeKernel: {
      const auto& k = p.kernel;
      const cudaKernelNodeParams params{k.func,           k.gridDim,      k.blockDim,
                                        k.sharedMemBytes, k.kernelParams, k.extra};
      node.work = work_of(params);
      return;
    }
    case cudaGraphNodeTypeMemcpy:
      node.work = work_of(p.memcpy.copyParams);
      return;
    case cudaGraphNodeTypeMemset: {
      const auto& m = p.memset;
      cudaMemsetParams params{};
      params.dst = m.dst;
      params.pitch = m.pitch;
      params.value = m.value;
      params.elementSize = m.elementSize;
      params.width = m.width;
      params.height = m.height;
      node.work = work_of(params);
      return;
    }
    case cudaGraphNodeTypeHost:
      node.work = work_of(cudaHostNodeParams{p.host.fn, p.host.userData});
      return;
    case cudaGraphNodeTypeGraph:
      node.child = graph_of(p.graph.graph).clone();
      return;
    case cudaGraphNodeTypeWaitEvent:
      set_event(node, p.type, p.eventWait.event);
      return;
    case cudaGraphNodeTypeEventRecord:
      set_event(node, p.type, p.eventRecord.event);
      return;
    case cudaGraphNodeTypeEmpty:
      return;
    default:
      throw ApiError{cudaErrorNotSupported};
  }
}

/// An allocation node of the parameters of either call.
template <class Parameters>
GraphNode& add_memory_node(const Parameters& p, cudaGraph_t graph, const std::vector<GraphNode*>& after) {
  const cudaMemLocation& place = p.poolProps.location;
  const int device = place.type == cudaMemLocationTypeDevice ? place.id : current_device();
  require(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
  std::uint64_t guests = 0;
  for (std::size_t k = 0; k < p.accessDescCount; ++k) {
    const cudaMemAccessDesc& access = p.accessDescs[k];
    require(access.location.type == cudaMemLocationTypeDevice && access.location.id >= 0 &&
            access.location.id < device_count());
    if (access.flags == cudaMemAccessFlagsProtReadWrite) guests |= std::uint64_t{1} << access.location.id;
  }
  return add_alloc_node(graph_of(graph), after, p.bytesize, device, guests);
}

}  // namespace

extern "C" {

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaKernelNodeParams* p) {
  return api("cudaGraphAddKernelNode", [&] {
    require(p);
    add(node, graph, after, count, cudaGraphNodeTypeKernel, work_of(*p));
  });
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaMemcpy3DParms* p) {
  return api("cudaGraphAddMemcpyNode", [&] {
    require(p);
    add(node, graph, after, count, cudaGraphNodeTypeMemcpy, work_of(*p));
  });
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                     std::size_t count, void* to, const void* from, std::size_t bytes,
                                     cudaMemcpyKind kind) {
  return api("cudaGraphAddMemcpyNode1D", [&] {
    add(node, graph, after, count, cudaGraphNodeTypeMemcpy, work_of(linear_copy(to, from, bytes, kind)));
  });
}

cudaError_t cudaGraphAddMemcpyNodeToSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* after, std::size_t count,
                                           const void* symbol, const void* from, std::size_t bytes,
                                           std::size_t offset, cudaMemcpyKind kind) {
  return api("cudaGraphAddMemcpyNodeToSymbol", [&] {
    add(node, graph, after, count, cudaGraphNodeTypeMemcpy,
        work_of(copy_to_symbol(symbol, from, bytes, offset, kind)));
  });
}

cudaError_t cudaGraphAddMemcpyNodeFromSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* after, std::size_t count, void* to,
                                             const void* symbol, std::size_t bytes, std::size_t offset,
                                             cudaMemcpyKind kind) {
  return api("cudaGraphAddMemcpyNodeFromSymbol", [&] {
    add(node, graph, after, count, cudaGraphNodeTypeMemcpy,
        work_of(copy_from_symbol(to, symbol, bytes, offset, kind)));
  });
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaMemsetParams* p) {
  return api("cudaGraphAddMemsetNode", [&] {
    require(p);
    add(node, graph, after, count, cudaGraphNodeTypeMemset, work_of(*p));
  });
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                 std::size_t count, const cudaHostNodeParams* p) {
  return api("cudaGraphAddHostNode", [&] {
    require(p);
    add(node, graph, after, count, cudaGraphNodeTypeHost, work_of(*p));
  });
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                  std::size_t count) {
  return api("cudaGraphAddEmptyNode",
             [&] { add(node, graph, after, count, cudaGraphNodeTypeEmpty, nullptr); });
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       std::size_t count, cudaGraph_t child) {
  return api("cudaGraphAddChildGraphNode", [&] {
    std::shared_ptr<Graph> copy = graph_of(child).clone();
    add(node, graph, after, count, cudaGraphNodeTypeGraph, nullptr).child = std::move(copy);
  });
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                        const cudaGraphNode_t* after, std::size_t count, cudaEvent_t event) {
  return api("cudaGraphAddEventRecordNode", [&] {
    event_of(event);
    add(node, graph, after, count, cudaGraphNodeTypeEventRecord, nullptr).event = event;
  });
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                      std::size_t count, cudaEvent_t event) {
  return api("cudaGraphAddEventWaitNode", [&] {
    event_of(event);
    add(node, graph, after, count, cudaGraphNodeTypeWaitEvent, nullptr).event = event;
  });
}

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                     std::size_t count, cudaMemAllocNodeParams* p) {
  return api("cudaGraphAddMemAllocNode", [&] {
    require(node && p && p->bytesize);
    GraphNode& made = add_memory_node(*p, graph, nodes_of(after, count));
    p->dptr = made.memory->params.dptr;
    made.memory->params = *p;
    *node = handle_of(made);
  });
}

cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                    std::size_t count, void* pointer) {
  return api("cudaGraphAddMemFreeNode", [&] {
    require(node);
    *node = handle_of(add_free_node(graph_of(graph), nodes_of(after, count), pointer));
  });
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                             const cudaGraphEdgeData*, std::size_t count, cudaGraphNodeParams* p) {
  return api("cudaGraphAddNode", [&] {
    require(node && p);
    const std::vector<GraphNode*> before = nodes_of(after, count);
    if (p->type == cudaGraphNodeTypeMemAlloc) {
      GraphNode& made = add_memory_node(p->alloc, graph, before);
      p->alloc.dptr = made.memory->params.dptr;
      *node = handle_of(made);
    } else if (p->type == cudaGraphNodeTypeMemFree) {
      *node = handle_of(add_free_node(graph_of(graph), before, p->free.dptr));
    } else {
      GraphNode& made = graph_of(graph).add(p->type, before);
      try {
        set_params(made, *p);
      } catch (...) {
        made.graph->remove(made);
        throw;
      }
      *node = handle_of(made);
    }
  });
}

cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* p) {
  return api("cudaGraphNodeSetParams", [&] {
    require(p);
    set_params(node_of(node), *p);
  });
}

cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeParams* p) {
  return api("cudaGraphExecNodeSetParams", [&] {
    require(p);
    set_params(exec_of(exec).graph->clone_of(&node_of(node)), *p);
  });
}

// Parameters of kernel nodes.

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* p) {
  return api("cudaGraphKernelNodeGetParams", [&] {
    require(p);
    *p = kernel_params(node_of(node));
  });
}

cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  return api("cudaGraphKernelNodeSetParams", [&] {
    require(p);
    set_work(node_of(node), cudaGraphNodeTypeKernel, work_of(*p));
  });
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* p) {
  return api("cudaGraphExecKernelNodeSetParams", [&] {
    require(p);
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeKernel, work_of(*p));
  });
}

cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node, cudaLaunchAttributeID id,
                                            cudaLaunchAttributeValue* value) {
  return api("cudaGraphKernelNodeGetAttribute", [&] {
    require(value);
    *value = {};
    const auto* const work = dynamic_cast<const KernelWork*>(node_of(node).work.get());
    require(work);
    if (id == cudaLaunchAttributeCooperative) value->cooperative = work->shape.cooperative;
  });
}

cudaError_t cudaGraphKernelNodeSetAttribute(cudaGraphNode_t node, cudaLaunchAttributeID id,
                                            const cudaLaunchAttributeValue* value) {
  return api("cudaGraphKernelNodeSetAttribute", [&] {
    require(value);
    const auto* const work = dynamic_cast<const KernelWork*>(node_of(node).work.get());
    require(work);
    if (id != cudaLaunchAttributeCooperative) return;  // hints
    auto changed = std::make_shared<KernelWork>(*work);
    changed->shape.cooperative = value->cooperative != 0;
    node_of(node).work = std::move(changed);
  });
}

cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t to, cudaGraphNode_t from) {
  return api("cudaGraphKernelNodeCopyAttributes", [&] {
    const auto* const source = dynamic_cast<const KernelWork*>(node_of(from).work.get());
    const auto* const target = dynamic_cast<const KernelWork*>(node_of(to).work.get());
    require(source && target);
    auto changed = std::make_shared<KernelWork>(*target);
    changed->shape.cooperative = source->shape.cooperative;
    node_of(to).work = std::move(changed);
  });
}

// Parameters of copy nodes.

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* p) {
  return api("cudaGraphMemcpyNodeGetParams", [&] {
    require(p);
    *p = copy_params(node_of(node));
  });
}

cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* p) {
  return api("cudaGraphMemcpyNodeSetParams", [&] {
    require(p);
    set_work(node_of(node), cudaGraphNodeTypeMemcpy, work_of(*p));
  });
}

cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from,
                                           std::size_t bytes, cudaMemcpyKind kind) {
  return api("cudaGraphMemcpyNodeSetParams1D", [&] {
    set_work(node_of(node), cudaGraphNodeTypeMemcpy, work_of(linear_copy(to, from, bytes, kind)));
  });
}

cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, const void* symbol, const void* from,
                                                 std::size_t bytes, std::size_t offset, cudaMemcpyKind kind) {
  return api("cudaGraphMemcpyNodeSetParamsToSymbol", [&] {
    set_work(node_of(node), cudaGraphNodeTypeMemcpy,
             work_of(copy_to_symbol(symbol, from, bytes, offset, kind)));
  });
}

cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, void* to, const void* symbol,
                                                   std::size_t bytes, std::size_t offset,
                                                   cudaMemcpyKind kind) {
  return api("cudaGraphMemcpyNodeSetParamsFromSymbol", [&] {
    set_work(node_of(node), cudaGraphNodeTypeMemcpy,
             work_of(copy_from_symbol(to, symbol, bytes, offset, kind)));
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* p) {
  return api("cudaGraphExecMemcpyNodeSetParams", [&] {
    require(p);
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeMemcpy, work_of(*p));
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                               const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return api("cudaGraphExecMemcpyNodeSetParams1D", [&] {
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeMemcpy,
             work_of(linear_copy(to, from, bytes, kind)));
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                     const void* symbol, const void* from, std::size_t bytes,
                                                     std::size_t offset, cudaMemcpyKind kind) {
  return api("cudaGraphExecMemcpyNodeSetParamsToSymbol", [&] {
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeMemcpy,
             work_of(copy_to_symbol(symbol, from, bytes, offset, kind)));
  });
}

cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                                       const void* symbol, std::size_t bytes,
                                                       std::size_t offset, cudaMemcpyKind kind) {
  return api("cudaGraphExecMemcpyNodeSetParamsFromSymbol", [&] {
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeMemcpy,
             work_of(copy_from_symbol(to, symbol, bytes, offset, kind)));
  });
}

// Parameters of the other nodes.

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* p) {
  return api("cudaGraphMemsetNodeGetParams", [&] {
    require(p);
    *p = fill_params(node_of(node));
  });
}

cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* p) {
  return api("cudaGraphMemsetNodeSetParams", [&] {
    require(p);
    set_work(node_of(node), cudaGraphNodeTypeMemset, work_of(*p));
  });
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemsetParams* p) {
  return api("cudaGraphExecMemsetNodeSetParams", [&] {
    require(p);
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeMemset, work_of(*p));
  });
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* p) {
  return api("cudaGraphHostNodeGetParams", [&] {
    require(p);
    *p = host_params(node_of(node));
  });
}

cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* p) {
  return api("cudaGraphHostNodeSetParams", [&] {
    require(p);
    set_work(node_of(node), cudaGraphNodeTypeHost, work_of(*p));
  });
}

cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           const cudaHostNodeParams* p) {
  return api("cudaGraphExecHostNodeSetParams", [&] {
    require(p);
    set_work(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeHost, work_of(*p));
  });
}

cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  return api("cudaGraphChildGraphNodeGetGraph", [&] {
    require(graph && node_of(node).child);
    *graph = handle_of(*node_of(node).child);
  });
}

cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaGraph_t child) {
  return api("cudaGraphExecChildGraphNodeSetParams", [&] {
    GraphNode& twin = exec_of(exec).graph->clone_of(&node_of(node));
    require(twin.child && twin.child->nodes.size() == graph_of(child).nodes.size());
    twin.child = graph_of(child).clone();
  });
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return api("cudaGraphEventRecordNodeGetEvent", [&] {
    require(event && node_of(node).type == cudaGraphNodeTypeEventRecord);
    *event = node_of(node).event;
  });
}

cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return api("cudaGraphEventRecordNodeSetEvent",
             [&] { set_event(node_of(node), cudaGraphNodeTypeEventRecord, event); });
}

cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaEvent_t event) {
  return api("cudaGraphExecEventRecordNodeSetEvent", [&] {
    set_event(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeEventRecord, event);
  });
}

cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return api("cudaGraphEventWaitNodeGetEvent", [&] {
    require(event && node_of(node).type == cudaGraphNodeTypeWaitEvent);
    *event = node_of(node).event;
  });
}

cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return api("cudaGraphEventWaitNodeSetEvent",
             [&] { set_event(node_of(node), cudaGraphNodeTypeWaitEvent, event); });
}

cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                               cudaEvent_t event) {
  return api("cudaGraphExecEventWaitNodeSetEvent", [&] {
    set_event(exec_of(exec).graph->clone_of(&node_of(node)), cudaGraphNodeTypeWaitEvent, event);
  });
}

cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, cudaMemAllocNodeParams* p) {
  return api("cudaGraphMemAllocNodeGetParams", [&] {
    require(p && node_of(node).memory);
    *p = node_of(node).memory->params;
  });
}

cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* pointer) {
  return api("cudaGraphMemFreeNodeGetParams", [&] {
    require(pointer && node_of(node).type == cudaGraphNodeTypeMemFree);
    *static_cast<void**>(pointer) = node_of(node).freed;
  });
}
}

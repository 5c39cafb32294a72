#include <cuda_runtime_api.h>

#include "runtime/api.h"

/// The names that programs built with --default-stream per-thread call: the plain functions, with the thread's own stream as default.
using namespace emulator;

#define PER_THREAD(name, plain, parameters, arguments) \
  cudaError_t name parameters {                        \
    const PerThreadDefaultStream scope;                \
    return plain arguments;                            \
  }

extern "C" {

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream);

PER_THREAD(__cudaLaunchKernel_ptsz, __cudaLaunchKernel,
           (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
            cudaStream_t stream),
           (kernel, grid, block, arguments, shared, stream))
PER_THREAD(cudaEventRecordWithFlags_ptsz, cudaEventRecordWithFlags,
           (cudaEvent_t event, cudaStream_t stream, unsigned flags), (event, stream, flags))
PER_THREAD(cudaEventRecord_ptsz, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
PER_THREAD(cudaFreeAsync_ptsz, cudaFreeAsync, (void* pointer, cudaStream_t stream), (pointer, stream))
PER_THREAD(cudaGraphInstantiateWithParams_ptsz, cudaGraphInstantiateWithParams,
           (cudaGraphExec_t * exec, cudaGraph_t graph, cudaGraphInstantiateParams* params),
           (exec, graph, params))
PER_THREAD(cudaGraphLaunch_ptsz, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))
PER_THREAD(cudaGraphUpload_ptsz, cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))
PER_THREAD(cudaLaunchCooperativeKernel_ptsz, cudaLaunchCooperativeKernel,
           (const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
            cudaStream_t stream),
           (function, grid, block, arguments, shared, stream))
PER_THREAD(cudaLaunchHostFunc_ptsz, cudaLaunchHostFunc,
           (cudaStream_t stream, cudaHostFn_t function, void* data), (stream, function, data))
PER_THREAD(cudaLaunchKernelExC_ptsz, cudaLaunchKernelExC,
           (const cudaLaunchConfig_t* config, const void* function, void** arguments),
           (config, function, arguments))
PER_THREAD(cudaLaunchKernel_ptsz, cudaLaunchKernel,
           (const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
            cudaStream_t stream),
           (function, grid, block, arguments, shared, stream))
PER_THREAD(cudaMallocAsync_ptsz, cudaMallocAsync, (void** pointer, std::size_t size, cudaStream_t stream),
           (pointer, size, stream))
PER_THREAD(cudaMallocFromPoolAsync_ptsz, cudaMallocFromPoolAsync,
           (void** pointer, std::size_t size, cudaMemPool_t pool, cudaStream_t stream),
           (pointer, size, pool, stream))
PER_THREAD(cudaMemPrefetchBatchAsync_ptsz, cudaMemPrefetchBatchAsync,
           (void** pointers, std::size_t* bytes, std::size_t count, cudaMemLocation* places,
            std::size_t* first_of_place, std::size_t place_count, unsigned long long flags,
            cudaStream_t stream),
           (pointers, bytes, count, places, first_of_place, place_count, flags, stream))
PER_THREAD(cudaMemPrefetchAsync_ptsz, cudaMemPrefetchAsync,
           (const void* pointer, std::size_t bytes, cudaMemLocation location, unsigned flags,
            cudaStream_t stream),
           (pointer, bytes, location, flags, stream))
PER_THREAD(cudaMemcpy2DAsync_ptsz, cudaMemcpy2DAsync,
           (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
            std::size_t height, cudaMemcpyKind kind, cudaStream_t stream),
           (to, to_pitch, from, from_pitch, width, height, kind, stream))
PER_THREAD(cudaMemcpy2D_ptds, cudaMemcpy2D,
           (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
            std::size_t height, cudaMemcpyKind kind),
           (to, to_pitch, from, from_pitch, width, height, kind))
PER_THREAD(cudaMemcpy3DAsync_ptsz, cudaMemcpy3DAsync, (const cudaMemcpy3DParms* p, cudaStream_t stream),
           (p, stream))
PER_THREAD(cudaMemcpy3DPeerAsync_ptsz, cudaMemcpy3DPeerAsync,
           (const cudaMemcpy3DPeerParms* p, cudaStream_t stream), (p, stream))
PER_THREAD(cudaMemcpy3DPeer_ptds, cudaMemcpy3DPeer, (const cudaMemcpy3DPeerParms* p), (p))
PER_THREAD(cudaMemcpy3D_ptds, cudaMemcpy3D, (const cudaMemcpy3DParms* p), (p))
PER_THREAD(cudaMemcpyAsync_ptsz, cudaMemcpyAsync,
           (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
           (to, from, bytes, kind, stream))
PER_THREAD(cudaMemcpyBatchAsync_ptsz, cudaMemcpyBatchAsync,
           (void* const* dsts, const void* const* srcs, const std::size_t* sizes, std::size_t bytes,
            cudaMemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs, cudaStream_t stream),
           (dsts, srcs, sizes, bytes, attrs, attrsIdxs, numAttrs, stream))
PER_THREAD(cudaMemcpyFromSymbolAsync_ptsz, cudaMemcpyFromSymbolAsync,
           (void* to, const void* symbol, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind,
            cudaStream_t stream),
           (to, symbol, bytes, offset, kind, stream))
PER_THREAD(cudaMemcpyFromSymbol_ptds, cudaMemcpyFromSymbol,
           (void* to, const void* symbol, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind),
           (to, symbol, bytes, offset, kind))
PER_THREAD(cudaMemcpyToSymbolAsync_ptsz, cudaMemcpyToSymbolAsync,
           (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind,
            cudaStream_t stream),
           (symbol, from, bytes, offset, kind, stream))
PER_THREAD(cudaMemcpyToSymbol_ptds, cudaMemcpyToSymbol,
           (const void* symbol, const void* from, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind),
           (symbol, from, bytes, offset, kind))
PER_THREAD(cudaMemcpy_ptds, cudaMemcpy, (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind),
           (to, from, bytes, kind))
PER_THREAD(cudaMemset2DAsync_ptsz, cudaMemset2DAsync,
           (void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height,
            cudaStream_t stream),
           (pointer, pitch, value, width, height, stream))
PER_THREAD(cudaMemset2D_ptds, cudaMemset2D,
           (void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height),
           (pointer, pitch, value, width, height))
PER_THREAD(cudaMemset3DAsync_ptsz, cudaMemset3DAsync,
           (cudaPitchedPtr pitched, int value, cudaExtent extent, cudaStream_t stream),
           (pitched, value, extent, stream))
PER_THREAD(cudaMemset3D_ptds, cudaMemset3D, (cudaPitchedPtr pitched, int value, cudaExtent extent),
           (pitched, value, extent))
PER_THREAD(cudaMemsetAsync_ptsz, cudaMemsetAsync,
           (void* pointer, int value, std::size_t bytes, cudaStream_t stream),
           (pointer, value, bytes, stream))
PER_THREAD(cudaMemset_ptds, cudaMemset, (void* pointer, int value, std::size_t bytes),
           (pointer, value, bytes))
PER_THREAD(cudaStreamAddCallback_ptsz, cudaStreamAddCallback,
           (cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags),
           (stream, callback, data, flags))
PER_THREAD(cudaStreamAttachMemAsync_ptsz, cudaStreamAttachMemAsync,
           (cudaStream_t stream, void* pointer, std::size_t length, unsigned flags),
           (stream, pointer, length, flags))
PER_THREAD(cudaStreamBeginCaptureToGraph_ptsz, cudaStreamBeginCaptureToGraph,
           (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
            const cudaGraphEdgeData* edges, std::size_t count, cudaStreamCaptureMode mode),
           (stream, graph, dependencies, edges, count, mode))
PER_THREAD(cudaStreamBeginCapture_ptsz, cudaStreamBeginCapture,
           (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))
PER_THREAD(cudaStreamCopyAttributes_ptsz, cudaStreamCopyAttributes, (cudaStream_t to, cudaStream_t from),
           (to, from))
PER_THREAD(cudaStreamEndCapture_ptsz, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph),
           (stream, graph))
PER_THREAD(cudaStreamGetAttribute_ptsz, cudaStreamGetAttribute,
           (cudaStream_t stream, cudaStreamAttrID attribute, cudaStreamAttrValue* value_out),
           (stream, attribute, value_out))
PER_THREAD(cudaStreamGetCaptureInfo_ptsz, cudaStreamGetCaptureInfo,
           (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
            const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, std::size_t* count),
           (stream, status, id, graph, dependencies, edges, count))
PER_THREAD(cudaStreamGetDevice_ptsz, cudaStreamGetDevice, (cudaStream_t stream, int* device),
           (stream, device))
PER_THREAD(cudaStreamGetFlags_ptsz, cudaStreamGetFlags, (cudaStream_t stream, unsigned* flags),
           (stream, flags))
PER_THREAD(cudaStreamGetId_ptsz, cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), (stream, id))
PER_THREAD(cudaStreamGetPriority_ptsz, cudaStreamGetPriority, (cudaStream_t stream, int* priority),
           (stream, priority))
PER_THREAD(cudaStreamIsCapturing_ptsz, cudaStreamIsCapturing,
           (cudaStream_t stream, cudaStreamCaptureStatus* status), (stream, status))
PER_THREAD(cudaStreamQuery_ptsz, cudaStreamQuery, (cudaStream_t stream), (stream))
PER_THREAD(cudaStreamSetAttribute_ptsz, cudaStreamSetAttribute,
           (cudaStream_t stream, cudaStreamAttrID attribute, const cudaStreamAttrValue* value),
           (stream, attribute, value))
PER_THREAD(cudaStreamSynchronize_ptsz, cudaStreamSynchronize, (cudaStream_t stream), (stream))
PER_THREAD(cudaStreamUpdateCaptureDependencies_ptsz, cudaStreamUpdateCaptureDependencies,
           (cudaStream_t stream, cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges,
            std::size_t count, unsigned flags),
           (stream, dependencies, edges, count, flags))
PER_THREAD(cudaStreamWaitEvent_ptsz, cudaStreamWaitEvent,
           (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
}

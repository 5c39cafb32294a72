#include <cuda_runtime_api.h>

#include "runtime/api.h"
#include "runtime/capture.h"
#include "runtime/host_work.h"

namespace emulator {

bool& PerThreadDefaultStream::active() {
  thread_local bool flag = false;
  return flag;
}

Stream& stream_of(cudaStream_t handle) {
  Scheduler& scheduler = Scheduler::instance();
  if (!handle && PerThreadDefaultStream::active()) handle = cudaStreamPerThread;
  if (!handle || handle == cudaStreamLegacy) return scheduler.legacy_stream(current_device());
  if (handle == cudaStreamPerThread) return scheduler.per_thread_stream(current_device());
  Stream* const stream = reinterpret_cast<Stream*>(handle);
  require(scheduler.is_stream(stream), cudaErrorInvalidResourceHandle);
  return *stream;
}

}  // namespace emulator

using namespace emulator;

namespace {

constexpr int least_priority = 0, greatest_priority = -5;

void create(cudaStream_t* stream, unsigned flags, int priority) {
  require(stream && flags <= cudaStreamNonBlocking);
  const int clamped = std::min(least_priority, std::max(greatest_priority, priority));
  Stream& made =
      Scheduler::instance().create_stream(current_device(), !(flags & cudaStreamNonBlocking), clamped);
  made.flags = flags;
  *stream = handle_of(made);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return api("cudaStreamCreate", [&] { create(stream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api("cudaStreamCreateWithFlags", [&] { create(stream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return api("cudaStreamCreateWithPriority", [&] { create(stream, flags, priority); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("cudaDeviceGetStreamPriorityRange", [&] {
    if (least) *least = least_priority;
    if (greatest) *greatest = greatest_priority;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return api("cudaStreamDestroy", [&] {
    Stream& stream = stream_of(handle);
    require(handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread,
            cudaErrorInvalidResourceHandle);
    forbid_in_capture(stream);
    Scheduler::instance().destroy_stream(stream);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return api("cudaStreamSynchronize", [&] {
    Stream& stream = stream_of(handle);
    forbid_in_capture(stream);
    Scheduler::instance().wait_stream(stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return api("cudaStreamQuery", [&] {
    Stream& stream = stream_of(handle);
    forbid_in_capture(stream);
    require(Scheduler::instance().query_stream(stream), cudaErrorNotReady);
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return api("cudaStreamGetPriority", [&] {
    require(priority);
    *priority = stream_of(stream).priority;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return api("cudaStreamGetFlags", [&] {
    require(flags);
    *flags = stream_of(stream).flags;
  });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return api("cudaStreamGetId", [&] {
    require(id);
    *id = stream_of(stream).key;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return api("cudaStreamGetDevice", [&] {
    require(device);
    *device = stream_of(stream).device;
  });
}

// Attributes of streams are hints, and none is kept.

cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return api("cudaStreamCopyAttributes", [&] {
    stream_of(to);
    stream_of(from);
  });
}

cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaLaunchAttributeID id,
                                   cudaLaunchAttributeValue* value) {
  return api("cudaStreamGetAttribute", [&] {
    require(value);
    *value = {};
    if (id == cudaLaunchAttributePriority) value->priority = stream_of(stream).priority;
  });
}

cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID,
                                   const cudaLaunchAttributeValue* value) {
  return api("cudaStreamSetAttribute", [&] {
    stream_of(stream);
    require(value);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return api("cudaLaunchHostFunc", [&] {
    require(function);
    submit(stream_of(stream), std::make_shared<HostWork>(function, data));
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  return api("cudaStreamAddCallback", [&] {
    require(callback && flags == 0);
    Stream& stream = stream_of(handle);
    forbid_in_capture(stream);
    submit(stream, std::make_shared<CallbackWork>(handle, callback, data));
  });
}
}

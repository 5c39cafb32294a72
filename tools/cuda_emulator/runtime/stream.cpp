#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "machine/device.h"
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

int clamped_priority(int priority) { return std::min(least_priority, std::max(greatest_priority, priority)); }

/// What programs have set, by the stream's key, which no other stream gets.
struct Attributes {
  std::mutex mutex;
  std::map<StreamKey, std::map<cudaLaunchAttributeID, cudaLaunchAttributeValue>> of_stream;
};
Attributes& attributes() {
  static auto* const instance = new Attributes;
  return *instance;
}

bool is_stream_attribute(cudaLaunchAttributeID id) {
  return id == cudaLaunchAttributeAccessPolicyWindow || id == cudaLaunchAttributeSynchronizationPolicy ||
         id == cudaLaunchAttributePriority || id == cudaLaunchAttributeMemSyncDomainMap ||
         id == cudaLaunchAttributeMemSyncDomain || id == cudaLaunchAttributeNvlinkUtilCentricScheduling;
}

void create(cudaStream_t* stream, unsigned flags, int priority) {
  require(stream && flags <= cudaStreamNonBlocking);
  const int clamped = clamped_priority(priority);
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
    leave_capture(stream);
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

// Attributes of streams are hints: kept, without effect.

cudaError_t cudaStreamCopyAttributes(cudaStream_t to_handle, cudaStream_t from_handle) {
  return api("cudaStreamCopyAttributes", [&] {
    Stream& to = stream_of(to_handle);
    const Stream& from = stream_of(from_handle);
    to.priority = from.priority;
    Attributes& all = attributes();
    const std::lock_guard lock(all.mutex);
    all.of_stream[to.key] = all.of_stream[from.key];
  });
}

cudaError_t cudaStreamGetAttribute(cudaStream_t handle, cudaLaunchAttributeID id,
                                   cudaLaunchAttributeValue* value) {
  return api("cudaStreamGetAttribute", [&] {
    require(value && is_stream_attribute(id));
    const Stream& stream = stream_of(handle);
    *value = {};
    if (id == cudaLaunchAttributePriority) {
      value->priority = stream.priority;
      return;
    }
    Attributes& all = attributes();
    const std::lock_guard lock(all.mutex);
    const auto& known = all.of_stream[stream.key];
    const auto found = known.find(id);
    if (found != known.end()) {
      *value = found->second;
    } else if (id == cudaLaunchAttributeSynchronizationPolicy) {
      value->syncPolicy = cudaSyncPolicyAuto;
    } else if (id == cudaLaunchAttributeMemSyncDomainMap) {
      value->memSyncDomainMap = {0, 1};
    }
  });
}

cudaError_t cudaStreamSetAttribute(cudaStream_t handle, cudaLaunchAttributeID id,
                                   const cudaLaunchAttributeValue* value) {
  return api("cudaStreamSetAttribute", [&] {
    Stream& stream = stream_of(handle);
    require(value && is_stream_attribute(id));
    if (id == cudaLaunchAttributePriority) {
      stream.priority = clamped_priority(value->priority);
      return;
    }
    if (id == cudaLaunchAttributeAccessPolicyWindow) {
      const cudaAccessPolicyWindow& window = value->accessPolicyWindow;
      require(window.hitRatio >= 0 && window.hitRatio <= 1 && window.num_bytes <= h100::access_window_bytes);
    }
    Attributes& all = attributes();
    const std::lock_guard lock(all.mutex);
    all.of_stream[stream.key][id] = *value;
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

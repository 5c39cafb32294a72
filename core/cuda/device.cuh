#pragma once
#include <cuda_runtime.h>

#include <source_location>
#include <string_view>

#include "core/cuda/streams.h"

/// The device of this process, inside the module.
namespace nemocube::cuda {

/// Throws Error that names the call, CUDA's name and words for the error and the place, unless `error` is success.
/// The error may be that of a kernel launched earlier, whose name is given too.
void check(cudaError_t error, const char* call, std::source_location where = std::source_location::current());
#define NEMOCUBE_CUDA(call) ::nemocube::cuda::check((call), #call)

/// The stream that the calling thread queues its work on (OnStream). Chooses the device for the thread, which CUDA asks
/// of every thread.
cudaStream_t stream();
cudaStream_t stream_of(Stream stream);
/// The index of the device in use.
int device_index();
/// Waits until the work of all streams is done. Throws Error when some of it failed.
void wait_for_all();

/// The name of a kernel that is about to be launched, for the message of a later error.
void note_launch(const char* name);

/// Queues a kernel. `name` is for messages: "rmsnorm forward".
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
            const Arguments&... arguments) {
  note_launch(name);
  kernel<<<blocks, threads, 0, stream()>>>(arguments...);
  check(cudaGetLastError(), name);
}

}  // namespace nemocube::cuda

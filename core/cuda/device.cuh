#pragma once
#include <cuda_runtime.h>

#include <source_location>
#include <string_view>

#include "core/cuda/streams.h"

/// The device of this process, inside the module.
namespace nemocube::cuda {

/// Throws Error that names the call, CUDA's name and words for the error and the place, unless `error` is
/// success. The error may be that of a kernel launched earlier, whose name is given too.
void check(cudaError_t error, const char* call, std::source_location where = std::source_location::current());
#define NEMOCUBE_CUDA(call) ::nemocube::cuda::check((call), #call)

/// The stream that the calling thread queues its work on (OnStream). Chooses the device for the thread, which
/// CUDA asks of every thread.
cudaStream_t stream();
cudaStream_t stream_of(Stream stream);
/// The index of the device in use.
int device_index();
/// Waits until the work of all streams is done. Throws Error when some of it failed.
void wait_for_all();

/// The name of a kernel that is about to be launched, for the message of a later error.
void note_launch(const char* name);
/// Behind launches().
std::int64_t count_launches();
/// For launches that were captured, not made.
void set_launches(std::int64_t count);

/// After a launch: throws Error where CUDA refuses it and, with synchronise_launches(), where the kernel
/// fails.
void check_launch(const char* name);

/// What the choice of tile sizes may depend on besides shapes.
struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes =
      0;  ///< of dynamic shared memory that a block can have: 99 KiB on compute 12.0, 227 KiB on 9.0
};
const DeviceLimits& device_limits();

/// Lets a kernel have more than 48 KiB of dynamic shared memory. std::logic_error for more than the device
/// has.
void allow_shared(const void* kernel, const char* name, std::size_t bytes);

/// Queues a kernel. `name` is for messages: "rmsnorm forward". `shared` bytes of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch_shared(const char* name, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                   std::size_t shared, const Arguments&... arguments) {
  note_launch(name);
  // A kernel has 48 KiB without being asked, of which its own arrays take some.
  if (shared > 32 * 1024) allow_shared(reinterpret_cast<const void*>(kernel), name, shared);
  kernel<<<blocks, threads, shared, stream()>>>(arguments...);
  check_launch(name);
}
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
            const Arguments&... arguments) {
  launch_shared(name, kernel, blocks, threads, 0, arguments...);
}

}  // namespace nemocube::cuda

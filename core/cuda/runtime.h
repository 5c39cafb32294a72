#pragma once
#include <cstdint>
#include <string>

#include "core/allocator.h"
#include "core/cuda/module.h"
#include "core/tensor.h"

/// The CUDA device of this process, for code that is not CUDA code. Work is queued in the order of the calls,
/// on one stream unless OnStream (core/cuda/streams.h) names another. The host waits in synchronize() and
/// where values come to host memory.
namespace nemocube::cuda {

/// The description of the device that `bench op` prints.
struct DeviceDescription {
  std::string name;          ///< "NVIDIA H100 80GB HBM3"
  std::string uuid;          ///< "GPU-3f2a...", as nvidia-smi writes it: the same for all processes
  std::string pci;           ///< "0000:1b:00.0", as Linux names the device
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;
};

/// Why no device can be used; empty when one can. Called by unavailable().
inline const Function<std::string()> device_problem("core/device_problem");
/// How many devices CUDA_VISIBLE_DEVICES leaves.
inline const Function<int()> device_count("core/device_count");
/// Chooses device `index` among the devices of CUDA_VISIBLE_DEVICES, before anything else uses the
/// device; without this call it is device 0. Throws Error for a device that does not exist,
/// std::logic_error when another one is in use.
inline const Function<void(int index)> use_device("core/use_device");
inline const Function<DeviceDescription()> describe_device("core/describe_device");
/// Waits until all work of all streams is done. Throws Error when some of it failed.
inline const Function<void()> synchronize("core/synchronize");
/// From the first call on, zones of the profile (core/profile.h) are ranges of NVTX, which profilers show.
/// While times are wanted, the time of a zone is measured on the device: on the thread's stream, from the end
/// of work queued before the zone to the end of work that the zone queues.
inline const Function<void(bool wanted)> time_zones("core/time_zones");
/// Whether times are wanted.
inline const Function<bool()> zones_are_timed("core/zones_are_timed");
/// How exactly the clock of the device was related to std::chrono::steady_clock when times were last asked
/// for: seconds, by which host_nanoseconds() (core/cuda/streams.h) and zones of a device in a trace
/// (core/trace.h) may be wrong then.
inline const Function<double()> device_clock_uncertainty("core/device_clock_uncertainty");
/// Whether every launch of a kernel is followed by a wait for its end, so that a message names the kernel in
/// which the error happened. Slow, and not counted as waits of the host.
inline const Function<void(bool wanted)> synchronise_launches("core/synchronise_launches");
/// How many kernels and products of cuBLAS the process has queued since its start. Copies are not counted.
inline const Function<std::int64_t()> launches("core/launches");
/// Begin and end of the part of a program that a profiler looks at.
inline const Function<void()> start_profiler("core/start_profiler"), stop_profiler("core/stop_profiler");

/// The software GPU's estimate of the parts between start_profiler() and stop_profiler() of all
/// processes of the program, as JSON (tools/cuda_emulator/timeline/TIMELINE.md). Throws Error
/// where nothing was recorded, as on a GPU.
inline const Function<std::string()> timeline_summary("core/timeline_summary");

/// Behind nemocube::allocator(): a stream-ordered pool, of device `index`; std::logic_error when another one
/// is in use. Freed memory serves later work on its stream at once; where other streams used it (note_use),
/// after their work.
inline const Function<Allocator&(int index)> device_allocator("core/allocator");

/// Behind Tensor::copy_from: `to` or `from` or both are on the device; shapes alike and not empty. Copies to
/// the device take the values of `from` at the call, by way of pinned memory (Staging), and do not wait for
/// the device; copies to the host wait until the values are there.
inline const Function<void(const Tensor& to, const Tensor& from)> copy("core/copy");
/// Behind Tensor::fill and Tensor::zero, for a tensor on the device that is not empty.
inline const Function<void(const Tensor& t, double value)> fill("core/fill");

}  // namespace nemocube::cuda

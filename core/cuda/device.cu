#include "core/cuda/device.cuh"

#include <cuda_profiler_api.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <mutex>

#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"

/// Of the software GPU's CUDA runtime alone (tools/cuda_emulator/runtime/library.h).
extern "C" __attribute__((weak)) long cuda_emulator_timeline(char* text, std::size_t size);

namespace nemocube::cuda {
namespace {

thread_local const char* last_launch = nullptr;
std::atomic<bool> wait_for_launches = false;
std::atomic<std::int64_t> launch_count = 0;

struct Chosen {
  std::mutex mutex;
  int index = 0;
  std::array<cudaStream_t, stream_count>
      streams{};  // made with the first use; they live as long as the process
};
Chosen& chosen() {
  static auto* device = new Chosen;
  return *device;
}

std::string problem() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cat("no CUDA device: ", cudaGetErrorString(error));
  return count > 0 ? "" : "no CUDA device: CUDA finds none";
}

int count_devices() {
  int count = 0;
  NEMOCUBE_CUDA(cudaGetDeviceCount(&count));
  return count;
}

void use(int index) {
  const int count = count_devices();
  require(index >= 0 && index < count, "no CUDA device ", index, ": there are ", count, ", counted from 0");
  Chosen& device = chosen();
  const std::lock_guard lock(device.mutex);
  expect(!device.streams[0] || device.index == index, "CUDA device ", index, " chosen while device ",
         device.index, " is in use");
  device.index = index;
}

std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += {digits[byte >> 4], digits[byte & 15]};
  }
  return text;
}

std::string pci_text(const cudaDeviceProp& properties) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
                properties.pciDeviceID);
  return text;
}

DeviceDescription describe() {
  stream();  // chooses the device
  cudaDeviceProp properties{};
  NEMOCUBE_CUDA(cudaGetDeviceProperties(&properties, chosen().index));
  return {.name = properties.name,
          .uuid = text_of(properties.uuid),
          .pci = pci_text(properties),
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
          .l2_bytes = properties.l2CacheSize};
}

std::string summary_of_timeline() {
  require(cuda_emulator_timeline, "a timeline: want the software GPU, this is the CUDA of a device");
  std::string text;
  long bytes = 1 << 20;
  while (bytes > std::ssize(text)) {
    text.resize(static_cast<std::size_t>(bytes) + 1);
    bytes = cuda_emulator_timeline(text.data(), text.size());
    require(bytes >= 0, "a timeline: the software GPU has none");
  }
  text.resize(static_cast<std::size_t>(bytes));
  return text;
}

void profiler_start() { NEMOCUBE_CUDA(cudaProfilerStart()); }
void profiler_stop() { NEMOCUBE_CUDA(cudaProfilerStop()); }

void set_synchronise_launches(bool wanted) { wait_for_launches = wanted; }

const Provide provided[] = {{device_problem, problem},
                            {device_count, count_devices},
                            {use_device, use},
                            {describe_device, describe},
                            {synchronize, wait_for_all},
                            {start_profiler, profiler_start},
                            {stop_profiler, profiler_stop},
                            {timeline_summary, summary_of_timeline},
                            {synchronise_launches, set_synchronise_launches},
                            {launches, count_launches}};

}  // namespace

void note_launch(const char* name) {
  last_launch = name;
  ++launch_count;
}

std::int64_t count_launches() { return launch_count; }
void set_launches(std::int64_t count) { launch_count = count; }

void check(cudaError_t error, const char* call, std::source_location where) {
  if (error == cudaSuccess) return;
  fail("CUDA: ", call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ", at ",
       where.file_name(), ":", where.line(), last_launch ? cat("; last kernel launched: ", last_launch) : "",
       ")");
}

void check_launch(const char* name) {
  check(cudaGetLastError(), name);
  if (!wait_for_launches) return;
  refuse_in_capture("every launch is waited for");
  check(cudaStreamSynchronize(stream()), name);
}

cudaStream_t stream_of(Stream stream) {
  Chosen& device = chosen();
  thread_local bool entered = false;
  if (!entered) {
    const std::lock_guard lock(device.mutex);
    NEMOCUBE_CUDA(cudaSetDevice(device.index));
    for (cudaStream_t& each : device.streams)
      if (!each) NEMOCUBE_CUDA(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking));
    entered = true;
  }
  return device.streams[static_cast<std::size_t>(stream)];
}

cudaStream_t stream() { return stream_of(OnStream::current()); }

int device_index() {
  stream();  // from here on no other device can be chosen
  return chosen().index;
}

const DeviceLimits& device_limits() {
  static const DeviceLimits limits = [] {
    const int device = device_index();
    DeviceLimits found;
    NEMOCUBE_CUDA(cudaDeviceGetAttribute(&found.multiprocessors, cudaDevAttrMultiProcessorCount, device));
    NEMOCUBE_CUDA(
        cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return found;
  }();
  return limits;
}

void allow_shared(const void* kernel, const char* name, std::size_t bytes) {
  expect(bytes <= static_cast<std::size_t>(device_limits().shared_bytes), name, ": ", bytes,
         " bytes of shared memory, the device has ", device_limits().shared_bytes);
  NEMOCUBE_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

void wait_for_all() {
  refuse_in_capture("the host waits for all work");
  for (int i = 0; i < stream_count; ++i)
    NEMOCUBE_CUDA(cudaStreamSynchronize(stream_of(static_cast<Stream>(i))));
}

}  // namespace nemocube::cuda

#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>

#include "runtime/scheduler.h"

/// What the functions of the CUDA runtime API share: the current device, streams by handle, errors.
namespace emulator {

/// CUDA_EMULATOR_DEVICES, default 1.
int device_count();
/// Of the calling thread.
int& current_device();
/// Whether this thread runs a host function of a stream, which must not call CUDA.
bool& inside_host_function();

/// The program uses CUDA: reports and counters are due at its end.
void mark_used();

/// Thrown inside of api(): what the API function returns.
struct ApiError {
  cudaError_t error;
};
inline void require(bool condition, cudaError_t error = cudaErrorInvalidValue) {
  if (!condition) throw ApiError{error};
}

/// Remembers the error of this thread (success and cudaErrorNotReady leave the old one) and returns it.
cudaError_t remember(cudaError_t error);
/// A launch by <<<...>>>, which drops the status, has failed: an error unless this thread reads its last error.
void refused_launch(const std::string& kernel, cudaError_t error);
/// At the end of the program.
void report_unread_refusals();
/// Set by what <<<...>>> calls right before the launch itself.
bool& launching_by_chevrons();
/// The error that the exception being handled stands for; reports what is no ordinary error of the API.
cudaError_t current_exception_error(const char* function);
/// The error that keeps the call from doing anything: sticky errors of the current device, calls inside of host functions.
cudaError_t entry_error();

/// Body of an API function: errors of the device come first, ApiError ends the body.
template <class F>
cudaError_t api(const char* function, F&& body) {
  cudaError_t error = entry_error();
  if (error == cudaSuccess) {
    try {
      body();
      error = entry_error();
    } catch (...) {
      error = current_exception_error(function);
    }
  }
  return remember(error);
}

/// Streams by handle: NULL is the legacy default stream of the current device, or the thread's own stream in calls of
/// programs built with --default-stream per-thread. Throws ApiError.
Stream& stream_of(cudaStream_t handle);
inline cudaStream_t handle_of(Stream& stream) { return reinterpret_cast<cudaStream_t>(&stream); }

/// While one lives, NULL means cudaStreamPerThread on this thread.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : before_(std::exchange(active(), true)) {}
  ~PerThreadDefaultStream() { active() = before_; }
  static bool& active();

 private:
  bool before_;
};

/// Appends the work to the stream, or to the graph that the stream is being captured into (then returns nullptr).
OperationPtr submit(Stream& stream, std::shared_ptr<Work> work);
/// Before calls that a stream capture forbids: fails with cudaErrorStreamCaptureUnsupported and invalidates the capture.
void forbid_in_capture();
void forbid_in_capture(Stream& stream);

/// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(std::exchange(current_device(), device)) {}
  ~DeviceScope() { current_device() = before_; }

 private:
  int before_;
};

}  // namespace emulator

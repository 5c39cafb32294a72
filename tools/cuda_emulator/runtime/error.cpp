#include <cuda_runtime_api.h>

#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

#include "checks/report.h"
#include "ptx/parser.h"
#include "runtime/api.h"

namespace emulator {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct ErrorName {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorName names[] = {
#define EMULATOR_ERROR(name, text) {name, #name, text},
#include "runtime/errors.inc"
#undef EMULATOR_ERROR
};

const ErrorName* find(cudaError_t error) {
  for (const ErrorName& entry : names) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

bool& inside_host_function() {
  thread_local bool inside = false;
  return inside;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t entry_error() {
  if (inside_host_function()) return cudaErrorNotPermitted;
  return static_cast<cudaError_t>(Scheduler::instance().device_error(current_device()));
}

cudaError_t current_exception_error(const char* function) {
  try {
    throw;
  } catch (const ApiError& e) {
    return e.error;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (const ptx::SyntaxError& e) {
    report(Severity::error, "invalid-ptx", std::string(function) + ": " + e.what());
    return cudaErrorInvalidPtx;
  } catch (const std::exception& e) {
    report(Severity::error, "runtime", std::string(function) + ": " + e.what());
    return cudaErrorUnknown;
  }
}

}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaGetLastError() {
  const int sticky = Scheduler::instance().device_error(current_device());
  if (sticky) return static_cast<cudaError_t>(sticky);
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  const int sticky = Scheduler::instance().device_error(current_device());
  return sticky ? static_cast<cudaError_t>(sticky) : last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorName* const entry = find(error);
  return entry ? entry->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorName* const entry = find(error);
  return entry ? entry->text : "unrecognized error code";
}
}

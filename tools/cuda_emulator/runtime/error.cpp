#include <cuda_runtime_api.h>

#include <cstdio>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "machine/report.h"
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

/// Launches by <<<...>>> that were refused, by the thread that has not read its error since.
struct Refusals {
  std::mutex mutex;
  std::vector<std::pair<std::thread::id, std::string>> unread;
};
Refusals& refusals() {
  static Refusals* const r = new Refusals;  // never destroyed: the program may end while threads run
  return *r;
}
thread_local bool refused = false;  ///< this thread has an entry

void read_refusals() {
  if (!std::exchange(refused, false)) return;
  Refusals& r = refusals();
  std::lock_guard lock(r.mutex);
  std::erase_if(r.unread, [](const auto& entry) { return entry.first == std::this_thread::get_id(); });
}

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

bool& launching_by_chevrons() {
  thread_local bool launching = false;
  return launching;
}

void refused_launch(const std::string& kernel, cudaError_t error) {
  refused = true;
  Refusals& r = refusals();
  std::lock_guard lock(r.mutex);
  r.unread.emplace_back(std::this_thread::get_id(),
                        "launch of " + kernel + " was refused (" + cudaGetErrorName(error) +
                            "), and the program never read that error (cudaGetLastError)");
}

void report_unread_refusals() {
  Refusals& r = refusals();
  std::lock_guard lock(r.mutex);
  for (const auto& [thread, message] : r.unread) report(Severity::error, "launch-error-unread", message);
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
  read_refusals();
  const int sticky = Scheduler::instance().device_error(current_device());
  if (sticky) return static_cast<cudaError_t>(sticky);
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  read_refusals();
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

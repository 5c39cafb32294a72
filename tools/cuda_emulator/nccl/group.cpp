#include <cuda_runtime_api.h>

#include <algorithm>
#include <thread>

#include "machine/thread_object.h"
#include "nccl/api.h"
#include "nccl/unit.h"

namespace emulator::nccl {
namespace {

/// The calls of a thread since ncclGroupStart.
struct Group {
  int depth = 0;
  std::vector<std::pair<std::shared_ptr<Communicator>, Request>> calls;
  std::vector<std::shared_ptr<Communicator>> creations;
  ncclResult_t error = ncclSuccess;  ///< of the first call that failed
};
Group& group() { return ThreadObject<Group>::get(); }
std::string& error_text() { return ThreadObject<std::string>::get(); }

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw Failure{ncclUnhandledCudaError, std::string(call) + ": " + cudaGetErrorString(error)};
}

/// The calling thread's current device is the communicator's while the object lives: stream NULL is that device's.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_up(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// What comes later in `to` waits for what is in `from`.
  void order(cudaStream_t from, cudaStream_t to) const {
    record(from);
    hold_up(to);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// The calls of a group on one communicator become one operation of the first call's stream; other streams wait and are waited for.
void start(const std::shared_ptr<Communicator>& communicator, std::vector<Request> requests) {
  const OnDevice on_device(communicator->device());
  const cudaStream_t stream = requests.front().stream;
  std::vector<cudaStream_t> others;
  for (const Request& request : requests) {
    if (request.stream != stream && std::find(others.begin(), others.end(), request.stream) == others.end()) {
      others.push_back(request.stream);
    }
  }
  for (const cudaStream_t other : others) Event().order(other, stream);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr, nullptr),
        "cudaStreamGetCaptureInfo");
  const bool captured = status != cudaStreamCaptureStatusNone;
  // NCCL does the operations of a communicator in the order of the calls, in a graph too.
  if (captured && communicator->captured && communicator->capture == capture)
    static_cast<const Event*>(communicator->captured.get())->hold_up(stream);
  Unit::enqueue(std::make_shared<Unit>(communicator, std::move(requests), captured), stream);
  if (captured) {
    const auto end = std::make_shared<Event>();
    end->record(stream);
    communicator->capture = capture;
    communicator->captured = end;
  }
  for (const cudaStream_t other : others) Event().order(stream, other);
}

void start(std::vector<std::pair<std::shared_ptr<Communicator>, Request>> calls) {
  while (!calls.empty()) {
    const std::shared_ptr<Communicator> communicator = calls.front().first;
    std::vector<Request> requests;
    std::erase_if(calls, [&](auto& call) {
      if (call.first != communicator) return false;
      requests.push_back(call.second);
      return true;
    });
    start(communicator, std::move(requests));
  }
}

/// Waits for the creation of those communicators that were asked to block.
ncclResult_t finish(const std::vector<std::shared_ptr<Communicator>>& creations) {
  ncclResult_t result = ncclSuccess;
  std::vector<std::shared_ptr<Communicator>> open = creations;
  while (!open.empty()) {
    std::erase_if(open, [&](const auto& communicator) {
      const ncclResult_t now = communicator->poll();
      if (now == ncclInProgress && communicator->blocking()) return false;
      if (now != ncclSuccess && result == ncclSuccess) result = now;
      if (now != ncclSuccess && now != ncclInProgress) set_last_error(communicator->message());
      return true;
    });
    if (!open.empty()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return result;
}

}  // namespace

void set_last_error(const std::string& message) { error_text() = message; }
const char* last_error() { return error_text().c_str(); }

ncclResult_t api(const char* function, const std::function<void()>& body) {
  try {
    body();
    return ncclSuccess;
  } catch (const Failure& failure) {
    set_last_error(std::string(function) + ": " + failure.message);
    if (failure.result != ncclInProgress && group().depth > 0 && group().error == ncclSuccess)
      group().error = failure.result;
    return failure.result;
  }
}

void add(Communicator& communicator, Request request) {
  if (group().depth > 0) {
    group().calls.emplace_back(communicator.shared_from_this(), request);
  } else {
    start(communicator.shared_from_this(), {request});
  }
}

ncclResult_t add_creation(const std::shared_ptr<Communicator>& communicator) {
  if (group().depth == 0) return finish({communicator});
  group().creations.push_back(communicator);
  return communicator->blocking() ? ncclSuccess : ncclInProgress;
}

}  // namespace emulator::nccl

using namespace emulator::nccl;

extern "C" {

ncclResult_t ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group().depth == 0) {
    set_last_error("ncclGroupEnd: there was no ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group().depth > 0) return ncclSuccess;
  Group ended;
  std::swap(ended, group());
  if (ended.error != ncclSuccess) return ended.error;
  const ncclResult_t created = finish(ended.creations);
  if (created != ncclSuccess && created != ncclInProgress) return created;
  const ncclResult_t started = api("ncclGroupEnd", [&] { start(std::move(ended.calls)); });
  return started != ncclSuccess ? started : created;
}
}

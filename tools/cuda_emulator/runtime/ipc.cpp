#include "runtime/ipc.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "machine/report.h"
#include "runtime/api.h"
#include "runtime/event.h"

namespace emulator {
namespace {

/// Moves an allocation into its file while no other work runs.
class ShareWork : public Work {
 public:
  explicit ShareWork(Allocation& allocation) : allocation_(allocation) {}
  int run(OperationId) override {
    try {
      place = AddressSpace::instance().share(allocation_);
    } catch (const std::runtime_error& error) {
      report(Severity::error, "interprocess-memory", error.what());
    }
    return 0;
  }
  std::string name() const override { return "cudaIpcGetMemHandle"; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::memory; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::point; }
  bool ordered() const override { return false; }

  std::optional<SharedPlace> place;

 private:
  Allocation& allocation_;
};

/// Memory that cudaIpcOpenMemHandle has given, by process, file and offset.
struct Opened {
  Allocation* allocation = nullptr;
  int count = 0;  ///< calls of cudaIpcOpenMemHandle that no cudaIpcCloseMemHandle has answered
};
struct OpenedMemory {
  using Key = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;
  std::mutex mutex;
  std::map<Key, Opened> by_handle;
};
OpenedMemory& opened_memory() {
  static OpenedMemory* const instance = new OpenedMemory;
  return *instance;
}

template <class Handle>
SharedHandle read(const Handle& handle, SharedHandle::Kind kind) {
  SharedHandle result;
  std::memcpy(static_cast<void*>(&result), &handle, sizeof result);
  require(result.kind == kind, cudaErrorInvalidResourceHandle);
  return result;
}

template <class Handle>
void write(Handle& handle, const SharedHandle& value) {
  static_assert(sizeof handle == 64);
  std::memset(&handle, 0, sizeof handle);
  std::memcpy(&handle, &value, sizeof value);
}

}  // namespace

int open_shared(const SharedHandle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(file >= 0, cudaErrorInvalidResourceHandle);
  return file;
}

SharedHandle export_memory(Allocation& allocation) {
  auto work = std::make_shared<ShareWork>(allocation);
  Scheduler& scheduler = Scheduler::instance();
  Stream& stream = scheduler.create_stream(allocation.device, false, 0);
  scheduler.wait({scheduler.enqueue(stream, work)}, false);
  scheduler.destroy_stream(stream);
  require(work->place.has_value(), cudaErrorMemoryAllocation);
  SharedHandle handle;
  handle.kind = SharedHandle::Kind::memory;
  handle.process = getpid();
  handle.file = work->place->file;
  handle.device = allocation.device;
  handle.offset = work->place->offset;
  handle.bytes = allocation.bytes;
  return handle;
}

Allocation& import_memory(const SharedHandle& handle, const char* label) {
  require(handle.process != getpid(), cudaErrorDeviceUninitialized);  // CUDA's answer in the process itself
  require(handle.device < device_count(), cudaErrorInvalidDevice);
  const int file = open_shared(handle);
  Allocation* allocation = nullptr;
  try {
    allocation = AddressSpace::instance().import(handle.device, {file, handle.offset}, handle.bytes, label);
  } catch (const std::runtime_error& error) {
    report(Severity::error, "interprocess-memory", error.what());
  }
  close(file);
  require(allocation, cudaErrorMapBufferObjectFailed);
  return *allocation;
}

bool opened_by_handle(std::uint64_t address) {
  const std::lock_guard lock(opened_memory().mutex);
  for (const auto& [key, opened] : opened_memory().by_handle) {
    if (opened.allocation->begin == address) return true;
  }
  return false;
}

// Events.

SharedEvent::SharedEvent() : file_(memfd_create("cuda_emulator event", MFD_CLOEXEC)) {
  require(file_ >= 0, cudaErrorMemoryAllocation);
  if (ftruncate(file_, sizeof(State)) != 0) {
    close(file_);
    throw ApiError{cudaErrorMemoryAllocation};
  }
  map();
}

SharedEvent::SharedEvent(const SharedHandle& handle) : file_(open_shared(handle)) { map(); }

void SharedEvent::map() {
  void* const memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) {
    close(file_);
    throw ApiError{cudaErrorMapBufferObjectFailed};
  }
  state_ = static_cast<State*>(memory);
}

SharedEvent::~SharedEvent() {
  munmap(state_, sizeof(State));
  close(file_);
}

SharedHandle SharedEvent::handle(int device) const {
  SharedHandle result;
  result.kind = SharedHandle::Kind::event;
  result.process = getpid();
  result.file = file_;
  result.device = device;
  return result;
}

bool SharedEvent::done(std::uint64_t record) const { return state_->done[record % places] >= record; }

class SharedEvent::Record : public Work {
 public:
  Record(std::shared_ptr<SharedEvent> event, std::uint64_t record)
      : event_(std::move(event)), record_(record) {}
  int run(OperationId) override {
    event_->finish(record_);
    return 0;
  }
  /// Other processes must not wait for a device that failed.
  void skip(int) override { event_->finish(record_); }
  std::string name() const override { return "cudaEventRecord"; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::event; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::point; }
  bool ordered() const override { return false; }

 private:
  std::shared_ptr<SharedEvent> event_;
  std::uint64_t record_;
};

class SharedEvent::Wait : public Work {
 public:
  Wait(std::shared_ptr<SharedEvent> event, std::uint64_t record)
      : event_(std::move(event)), record_(record) {}
  int run(OperationId) override { return event_->done(record_) ? 0 : work_again; }
  std::string name() const override { return "cudaStreamWaitEvent"; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::event; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::point; }
  bool ordered() const override { return false; }

 private:
  std::shared_ptr<SharedEvent> event_;
  std::uint64_t record_;
};

std::uint64_t SharedEvent::record(const std::shared_ptr<SharedEvent>& event, Stream& stream, Mark& mark) {
  const std::uint64_t number = ++event->state_->recorded;
  const OperationPtr operation =
      Scheduler::instance().enqueue(stream, std::make_shared<Record>(event, number));
  mark = {operation, operation->clock};
  return number;
}

void SharedEvent::wait(const std::shared_ptr<SharedEvent>& event, Stream& stream, std::uint64_t record) {
  Scheduler::instance().enqueue(stream, std::make_shared<Wait>(event, record));
}

}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return api("cudaIpcGetMemHandle", [&] {
    require(handle);
    forbid_in_capture();
    Allocation* const allocation = AddressSpace::instance().find(reinterpret_cast<std::uint64_t>(pointer));
    require(allocation && allocation->kind == AllocationKind::device);
    write(*handle, export_memory(*allocation));
  });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t memory_handle, unsigned flags) {
  return api("cudaIpcOpenMemHandle", [&] {
    require(pointer && flags == cudaIpcMemLazyEnablePeerAccess);
    forbid_in_capture();
    const SharedHandle handle = read(memory_handle, SharedHandle::Kind::memory);
    OpenedMemory& memory = opened_memory();
    const std::lock_guard lock(memory.mutex);
    const OpenedMemory::Key key{handle.process, handle.file, handle.offset};
    const auto known = memory.by_handle.find(key);
    if (known == memory.by_handle.end()) {
      memory.by_handle[key] = {&import_memory(handle, "cudaIpcOpenMemHandle"), 1};
    } else {
      ++known->second.count;
    }
    *pointer = reinterpret_cast<void*>(memory.by_handle[key].allocation->begin);
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return api("cudaIpcCloseMemHandle", [&] {
    forbid_in_capture();
    Scheduler::instance().wait_all(false);
    OpenedMemory& memory = opened_memory();
    const std::lock_guard lock(memory.mutex);
    for (auto it = memory.by_handle.begin(); it != memory.by_handle.end(); ++it) {
      Opened& opened = it->second;
      if (opened.allocation->begin != reinterpret_cast<std::uint64_t>(pointer)) continue;
      if (--opened.count == 0) {
        AddressSpace::instance().free(*opened.allocation);
        memory.by_handle.erase(it);
      }
      return;
    }
    throw ApiError{cudaErrorInvalidValue};
  });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event_handle) {
  return api("cudaIpcGetEventHandle", [&] {
    require(handle);
    const Event& event = event_of(event_handle);
    require(event.shared != nullptr, cudaErrorInvalidResourceHandle);
    write(*handle, event.shared->handle(event.device));
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t event_handle) {
  return api("cudaIpcOpenEventHandle", [&] {
    require(event);
    const SharedHandle handle = read(event_handle, SharedHandle::Kind::event);
    require(handle.process != getpid(), cudaErrorDeviceUninitialized);
    *event =
        make_event(cudaEventInterprocess | cudaEventDisableTiming, std::make_shared<SharedEvent>(handle));
  });
}
}

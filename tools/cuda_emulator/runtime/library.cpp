#include "runtime/library.h"

#include <cstring>
#include <iostream>

#include "checks/global_shadow.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "memory/address_space.h"
#include "runtime/api.h"
#include "runtime/copy.h"
#include "timeline/recorder.h"

namespace emulator {
namespace {

/// Work of the emulator's libcublas, libcublasLt and libnccl.
class LibraryWork : public Work {
 public:
  using Run = int (*)(void*, unsigned);
  using Drop = void (*)(void*);
  LibraryWork(const char* what, Run function, Drop drop, void* data)
      : what_(what), run_(function), drop_(drop), data_(data) {}
  ~LibraryWork() override {
    if (drop_) drop_(data_);
  }
  int run(OperationId operation) override {
    switch (run_(data_, operation)) {
      case cuda_emulator_done:
        return 0;
      case cuda_emulator_again:
        return work_again;
      default:
        return cudaErrorLaunchFailure;
    }
  }
  std::string name() const override { return what_; }
  timeline::HostStep::Kind call() const override {
    return what_.starts_with("nccl") ? timeline::HostStep::Kind::exchange : timeline::HostStep::Kind::product;
  }

 private:
  std::string what_;
  Run run_;
  Drop drop_;
  void* data_;
};

}  // namespace
}  // namespace emulator

using namespace emulator;

extern "C" {

int cuda_emulator_enqueue(cudaStream_t stream, const char* what, int (*run)(void*, unsigned),
                          void (*drop)(void*), void* data) {
  auto work =
      std::make_shared<LibraryWork>(what, run, drop, data);  // drops the data when the call fails, too
  return api(what, [&] { submit(stream_of(stream), std::move(work)); });
}

void* cuda_emulator_host(const void* pointer, std::size_t bytes, const char* what) {
  AddressSpace& space = AddressSpace::instance();
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const Translation place = space.translate(address, bytes);
  if (!place.host) {
    report(
        Severity::error, place.after_free ? "use-after-free" : "out-of-bounds",
        std::string(what) + " uses " + std::to_string(bytes) + " bytes: " + space.describe(address, bytes));
  }
  return place.host;
}

void cuda_emulator_touch(unsigned operation, const void* pointer, std::size_t bytes, int write,
                         const char* what) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  AddressSpace& space = AddressSpace::instance();
  if (checks_enabled()) {
    check_range(operation, address, bytes, write != 0, what);
    if (!write) {
      if (const auto first = space.first_uninitialised(address, bytes)) {
        report(Severity::error, "uninitialised",
               std::string(what) + " reads memory that was never written: " + space.describe(*first));
      }
    }
  }
  if (write) space.mark_initialised(address, bytes);
  timeline::add_bytes(static_cast<double>(bytes));
}

void cuda_emulator_product(double tensor_multiply_adds, double multiply_adds) {
  timeline::add_product(tensor_multiply_adds, multiply_adds);
}

void cuda_emulator_transfer(int kind, unsigned long long communicator, int rank, int ranks, int source,
                            int target, int sends, unsigned long long number, double bytes,
                            const char* name) {
  timeline::Transfer transfer;
  transfer.kind = static_cast<timeline::Transfer::Kind>(kind);
  transfer.communicator = communicator;
  transfer.rank = rank;
  transfer.ranks = ranks;
  transfer.source = source;
  transfer.target = target;
  transfer.number = number;
  transfer.bytes = bytes;
  timeline::add_transfer(transfer, sends != 0, name);
}

long cuda_emulator_timeline(char* text, std::size_t size) {
  try {
    const std::string summary = timeline::summary();
    if (text && size) {
      const std::size_t count = std::min(size - 1, summary.size());
      std::memcpy(text, summary.data(), count);
      text[count] = 0;
    }
    return static_cast<long>(summary.size());
  } catch (const std::exception& error) {
    std::cerr << "cuda_emulator: timeline: " << error.what() << '\n';
    return -1;
  }
}

void cuda_emulator_report(int severity, const char* kind, const char* message) {
  report(severity == 0 ? Severity::error : severity == 1 ? Severity::warning : Severity::note, kind, message);
}

int cuda_emulator_device_of(cudaStream_t stream) {
  try {
    return stream_of(stream).device;
  } catch (const ApiError&) {
    return current_device();
  }
}

int cuda_emulator_threads() { return static_cast<int>(worker_count()); }
}

#pragma once
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// What the tests of the runtime share. They use only its public functions, as a program does.
namespace emulator::test {

#define CHECK_OK(call) CHECK((call) == cudaSuccess)
#define REQUIRE_OK(call) REQUIRE((call) == cudaSuccess)

/// Holds a stream back until it is opened: what lies behind it in the stream cannot have run.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    REQUIRE_OK(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const auto* const opened = static_cast<std::shared_ptr<std::atomic<bool>>*>(data);
          while (!**opened) std::this_thread::yield();
          delete opened;
        },
        new std::shared_ptr<std::atomic<bool>>(open_)));
  }
  ~Gate() { open(); }
  void open() { *open_ = true; }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

/// The order in which host functions of streams were called.
class Log {
 public:
  void add(cudaStream_t stream, char name) {
    auto* const entry = new Entry{this, name};
    REQUIRE_OK(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          Entry* const e = static_cast<Entry*>(data);
          const std::lock_guard lock(e->log->mutex_);
          e->log->text_ += e->name;
          delete e;
        },
        entry));
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool before(char first, char second) {
    const std::string all = text();
    return all.find(first) < all.find(second) && all.find(second) != std::string::npos;
  }

 private:
  struct Entry {
    Log* log;
    char name;
  };
  std::mutex mutex_;
  std::string text_;
};

struct TestStream {
  explicit TestStream(unsigned flags = cudaStreamDefault) {
    REQUIRE_OK(cudaStreamCreateWithFlags(&handle, flags));
  }
  ~TestStream() { CHECK_OK(cudaStreamDestroy(handle)); }
  TestStream(const TestStream&) = delete;
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

struct TestEvent {
  explicit TestEvent(unsigned flags = cudaEventDefault) {
    REQUIRE_OK(cudaEventCreateWithFlags(&handle, flags));
  }
  ~TestEvent() { CHECK_OK(cudaEventDestroy(handle)); }
  TestEvent(const TestEvent&) = delete;
  operator cudaEvent_t() const { return handle; }
  cudaEvent_t handle = nullptr;
};

/// Device memory of `count` ints.
struct Ints {
  explicit Ints(std::size_t n) : count(n) {
    REQUIRE_OK(cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(int)));
  }
  ~Ints() { CHECK_OK(cudaFree(data)); }
  Ints(const Ints&) = delete;
  operator int*() const { return data; }
  std::vector<int> values() const {
    std::vector<int> out(count);
    CHECK_OK(cudaMemcpy(out.data(), data, count * sizeof(int), cudaMemcpyDeviceToHost));
    return out;
  }
  int* data = nullptr;
  std::size_t count;
};

}  // namespace emulator::test

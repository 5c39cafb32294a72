#pragma once
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

/// Ranks as processes: each test forks its ranks before anything of CUDA or NCCL is used in the process of the tests.
namespace emulator::nccl {

/// In a rank: ends the process with a message and status 1.
#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, \
                   ncclGetLastError(nullptr));                                           \
      std::fflush(nullptr);                                                              \
      _exit(1);                                                                          \
    }                                                                                    \
  } while (false)

/// A number that the process of the tests and all ranks share.
class SharedCounter {
 public:
  SharedCounter() {
    void* const memory =
        mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    count_ = new (memory) std::atomic<int>(0);
  }
  ~SharedCounter() { munmap(count_, sizeof *count_); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  void add() const { ++*count_; }
  int count() const { return *count_; }
  void wait_for(int count) const {
    while (*count_ < count) usleep(1000);
  }

 private:
  std::atomic<int>* count_ = nullptr;
};

/// Exit statuses of `ranks` processes that run body(rank, id); 128 + signal for one that was killed.
inline std::vector<int> run_ranks(int ranks, const std::function<void(int, ncclUniqueId)>& body) {
  auto* const id = static_cast<ncclUniqueId*>(
      mmap(nullptr, sizeof(ncclUniqueId), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(id != MAP_FAILED);
  REQUIRE(ncclGetUniqueId(id) == ncclSuccess);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(300);  // ends a rank that hangs
      body(rank, *id);
      std::exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  munmap(id, sizeof *id);
  return statuses;
}

/// Elements in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    EXPECT(cudaMalloc(&pointer_, bytes() + 1) == cudaSuccess);
    EXPECT(cudaMemcpy(pointer_, values.data(), bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess);  // streams that do not block may use the array at once
  }
  ~DeviceArray() { cudaFree(pointer_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return static_cast<T*>(pointer_); }
  std::vector<T> get(cudaStream_t stream = nullptr) const {
    EXPECT(cudaStreamSynchronize(stream) == cudaSuccess);
    std::vector<T> values(size_);
    EXPECT(cudaMemcpy(values.data(), pointer_, bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::size_t size_;
  void* pointer_ = nullptr;
};

}  // namespace emulator::nccl

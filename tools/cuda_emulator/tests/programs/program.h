#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

/// What the CUDA programs of this folder share: each checks its results on the host and ends with 0 or 1.

#define CHECK_CUDA(call)                                                                     \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

/// Device memory with the contents of a host vector.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(std::size_t size) : size_(size) { CHECK_CUDA(cudaMalloc(&data_, size * sizeof(T))); }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
    CHECK_CUDA(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  T* data() { return data_; }
  std::vector<T> host() const {
    std::vector<T> values(size_);
    CHECK_CUDA(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

inline std::vector<unsigned> random_words(std::size_t count, unsigned limit = 0) {
  std::mt19937 generator(count);
  std::vector<unsigned> values(count);
  for (unsigned& v : values) v = limit ? generator() % limit : generator();
  return values;
}

struct Program {
  const char* name;
  bool (*run)();  ///< whether the results are right
};

/// Runs the program that the first argument names, or all.
template <std::size_t n>
int run_programs(const Program (&programs)[n], int argc, char** argv) {
  bool found = false, right = true;
  for (const Program& program : programs) {
    if (argc > 1 && std::strcmp(argv[1], program.name) != 0) continue;
    found = true;
    const bool ok = program.run();
    std::printf("%s: %s\n", program.name, ok ? "ok" : "WRONG");
    right = right && ok;
  }
  if (!found) std::printf("no program %s\n", argv[1]);
  return found && right ? 0 : 1;
}

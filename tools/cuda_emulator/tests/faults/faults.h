#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <initializer_list>

// What the programs of planted faults share. `faults NAME` runs a program with one mistake, `faults NAME clean` the same program without
// it; faults_test.cpp demands a report for the one and silence for the other.

/// Whether the program runs without its mistake.
extern bool clean;

/// The programs of one file, which main.cu finds by name.
struct Program {
  const char* name;
  void (*run)();
};
struct Programs {
  Programs(std::initializer_list<Program> programs);
};
#define PROGRAM(name) \
  { #name, name }

inline void check(cudaError_t error) {
  if (error != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorName(error));
}
inline void finish() { check(cudaDeviceSynchronize()); }

/// Device memory of one program.
template <class T>
struct Array {
  T* data = nullptr;
  explicit Array(std::size_t count, bool written = true) {
    check(cudaMalloc(&data, count * sizeof(T)));
    if (written) check(cudaMemset(data, 0, count * sizeof(T)));
  }
  ~Array() { cudaFree(data); }
  Array(const Array&) = delete;
};

namespace {

__global__ void fill(int* p, int n, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = value;
}
__global__ void add_up(const int* p, int n, int* sum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(sum, p[i]);
}

}  // namespace

/// Streams that wait for nothing but, in the clean program, for each other.
struct TwoStreams {
  cudaStream_t first, second;
  cudaEvent_t event;
  TwoStreams() {
    check(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    check(cudaEventCreate(&event));
  }
  ~TwoStreams() {
    cudaEventDestroy(event);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
  }
  void join() {
    if (!clean) return;
    check(cudaEventRecord(event, first));
    check(cudaStreamWaitEvent(second, event));
  }
};

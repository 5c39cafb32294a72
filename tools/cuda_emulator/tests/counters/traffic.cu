// Kernels that read or write each byte of much memory once. `traffic NAME` runs one; traffic_test.cpp knows its bytes. `traffic NAME STATUS`
// runs it in two processes, and the first ends with that status. `traffic NAME wait` says "waits" when the kernel has run, and ends
// with the number of the signal that comes.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int rows = 4096, columns = 512, count = rows * columns;

__global__ void copy(const float* in, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];
}

// A block reads half of each sector of its columns. Its neighbour reads the other half.
__global__ void column_sums(const float* in, float* out) {
  const int column = 4 * blockIdx.x + threadIdx.x % 4;
  float sum = 0;
  for (int row = threadIdx.x / 4; row < rows; row += blockDim.x / 4) sum += in[row * columns + column];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/// Number of a signal that asks the process to end; 0: none came for a minute.
int signal_number(const sigset_t& signals) {
  std::puts("waits");
  std::fflush(stdout);
  const timespec minute{60, 0};
  const int signal = sigtimedwait(&signals, nullptr, &minute);
  return signal > 0 ? signal : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const name = argc > 1 ? argv[1] : "";
  const bool waits = argc > 2 && !std::strcmp(argv[2], "wait");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (waits) sigprocmask(SIG_BLOCK, &signals, nullptr);  // of all threads to come
  const pid_t child = argc > 2 && !waits ? fork() : 0;   // before the first use of CUDA
  float *in = nullptr, *out = nullptr;
  cudaMalloc(&in, count * sizeof(float));
  cudaMalloc(&out, count * sizeof(float));
  cudaMemset(in, 0, count * sizeof(float));
  if (!std::strcmp(name, "copy")) copy<<<count / 256, 256>>>(in, out);
  if (!std::strcmp(name, "column_sums")) column_sums<<<columns / 4, 64>>>(in, out);
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorName(error));
  cudaFree(in);
  cudaFree(out);
  if (child) waitpid(child, nullptr, 0);
  if (error != cudaSuccess) return 1;
  return waits ? signal_number(signals) : child ? std::atoi(argv[2]) : 0;
}

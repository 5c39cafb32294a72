// Launches that are refused.
#include "faults.h"

namespace {

__global__ void wide(int* p) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = 1;
  p[threadIdx.x] = shared[threadIdx.x];
}
void read_error() {
  if (clean && cudaGetLastError() != cudaSuccess) return;
}
void too_many_threads() {
  Array<int> p(2048);
  wide<<<1, 2048, 8192>>>(p.data);
  finish();
  read_error();
}
void too_much_shared_memory() {
  Array<int> p(32);
  wide<<<1, 32, 100000>>>(p.data);
  check(cudaDeviceSynchronize());  // succeeds, with the error still unread
  if (clean) cudaPeekAtLastError();
}
void status_of_launch_is_seen() {
  Array<int> p(2048);
  void* arguments[] = {&p.data};
  if (clean)
    cudaLaunchKernel(reinterpret_cast<const void*>(wide), dim3(1), dim3(2048), arguments, 8192, nullptr);
  else
    wide<<<1, 2048, 8192>>>(p.data);
}

const Programs programs = {
    PROGRAM(too_many_threads),
    PROGRAM(too_much_shared_memory),
    PROGRAM(status_of_launch_is_seen),
};

}  // namespace

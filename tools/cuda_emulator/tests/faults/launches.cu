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

// Clusters of several blocks are not supported: such a launch must not run as one of single blocks.
template <int blocks>
__global__ void __cluster_dims__(blocks, 1, 1) ranks_in_cluster(unsigned* out) {
  unsigned rank = 0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  out[blockIdx.x] = rank;
}
void cluster_of_two_blocks() {
  Array<unsigned> p(2);
  if (clean)
    ranks_in_cluster<1><<<2, 1>>>(p.data);
  else
    ranks_in_cluster<2><<<2, 1>>>(p.data);
  finish();
}

template <int bytes>
__global__ void with_static(char* p, int dynamic) {
  __shared__ char fixed[bytes];
  extern __shared__ char more[];
  fixed[threadIdx.x] = 1;
  if (dynamic) more[dynamic - 32 + threadIdx.x] = 1;
  p[threadIdx.x] = fixed[threadIdx.x];
}
// ptxas lets it pass for compute 9.0; no launch can have it.
void static_shared_above_48_kib() {
  Array<char> p(32);
  if (clean)
    with_static<(48 << 10)><<<1, 32>>>(p.data, 0);
  else
    with_static<(49 << 10)><<<1, 32>>>(p.data, 0);
  finish();
}
void static_and_dynamic_above_48_kib() {
  Array<char> p(32);
  const int dynamic = 9 << 10;
  if (clean)
    check(
        cudaFuncSetAttribute(with_static<(40 << 10)>, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
  with_static<(40 << 10)><<<1, 32, dynamic>>>(p.data, dynamic);
  finish();
}

const Programs programs = {
    PROGRAM(too_many_threads),           PROGRAM(too_much_shared_memory),
    PROGRAM(status_of_launch_is_seen),   PROGRAM(cluster_of_two_blocks),
    PROGRAM(static_shared_above_48_kib), PROGRAM(static_and_dynamic_above_48_kib),
};

}  // namespace

// Races between blocks and between streams.
#include <cooperative_groups.h>

#include "faults.h"

namespace cg = cooperative_groups;

namespace {

// Races between blocks

__global__ void one_place(int* p, bool own) { p[own ? blockIdx.x : 0] = blockIdx.x; }
void blocks_write_one_place() {
  Array<int> a(8);
  one_place<<<8, 1>>>(a.data, clean);
  finish();
}
__global__ void neighbours(int* p, int* q, bool other) {
  p[blockIdx.x] = blockIdx.x;
  q[blockIdx.x] = p[other ? (blockIdx.x + 1) % gridDim.x : blockIdx.x];
}
void blocks_read_neighbours() {
  Array<int> a(8), b(8);
  neighbours<<<8, 1>>>(a.data, b.data, !clean);
  finish();
}
__global__ void global_histogram(const int* values, int* bins, bool atomically) {
  const int bin = values[blockIdx.x * blockDim.x + threadIdx.x] & 3;
  if (atomically)
    atomicAdd(&bins[bin], 1);
  else
    bins[bin] += 1;
}
void global_histogram_without_atomics() {
  Array<int> values(128), bins(4);
  global_histogram<<<4, 32>>>(values.data, bins.data, clean);
  finish();
}
__global__ void last_block_sum(const int* values, int* partial, unsigned* count, int* sum, bool fence) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    int own = 0;
    for (int i = 0; i < blockDim.x; ++i) own += values[blockIdx.x * blockDim.x + i];
    partial[blockIdx.x] = own;
    if (fence) __threadfence();
    last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    if (last) {
      if (fence) __threadfence();
      int all = 0;
      for (int b = 0; b < gridDim.x; ++b) all += partial[b];
      *sum = all;
    }
  }
}
void last_block_without_fence() {  // the atomic orders it here, not on every GPU
  Array<int> values(256), partial(8), sum(1);
  Array<unsigned> count(1);
  last_block_sum<<<8, 32>>>(values.data, partial.data, count.data, sum.data, clean);
  finish();
}
/// The data are added up by atomics: nothing orders them before the ticket either.
__global__ void sum_of_atomics(const int* values, int* sums, unsigned* count, int* out, bool fence) {
  atomicAdd(&sums[blockIdx.x], values[blockIdx.x * blockDim.x + threadIdx.x]);
  if (fence) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && atomicInc(count, gridDim.x - 1) == gridDim.x - 1) {
    if (fence) __threadfence();
    for (int b = 0; b < gridDim.x; ++b) *out += sums[b];
  }
}
void last_block_of_atomics_without_fence() {
  Array<int> values(256), sums(8), out(1);
  Array<unsigned> count(1);
  sum_of_atomics<<<8, 32>>>(values.data, sums.data, count.data, out.data, clean);
  finish();
}
__global__ void volatile_handover(int* data, int* flag, bool fence) {
  if (blockIdx.x == 0) {
    *static_cast<volatile int*>(data) = 42;
    if (fence) __threadfence();
    *static_cast<volatile int*>(flag) = 1;
  } else {
    while (*static_cast<volatile int*>(flag) == 0) {
    }
    __threadfence();
    data[1] = data[0];
  }
}
void volatile_data_without_fence() {
  Array<int> data(2), flag(1);
  volatile_handover<<<2, 1>>>(data.data, flag.data, clean);
  finish();
}
__global__ void flag_handover(int* data, int* flag, bool strong) {
  if (blockIdx.x == 0) {
    *data = 42;
    __threadfence();
    if (strong)
      atomicExch(flag, 1);
    else
      *flag = 1;
  } else {
    for (int turn = 0; turn < 1000; ++turn)
      if (*static_cast<volatile int*>(flag)) break;
    __threadfence();
    if (*static_cast<volatile int*>(flag)) data[1] = data[0];
  }
}
void plain_flag() {
  Array<int> data(2), flag(1);
  flag_handover<<<2, 1>>>(data.data, flag.data, clean);
  finish();
}
__global__ void locked(int* lock, int* counter, bool take) {
  if (threadIdx.x != 0) return;
  if (take)
    while (atomicCAS(lock, 0, 1) != 0) {
    }
  __threadfence();
  *counter += 1;
  __threadfence();
  if (take) atomicExch(lock, 0);
}
void lock_not_taken() {
  Array<int> lock(1), counter(1);
  locked<<<16, 32>>>(lock.data, counter.data, clean);
  finish();
}
__global__ void smooth(float* a, float* b, int n, int steps, bool wait) {
  cg::grid_group grid = cg::this_grid();
  for (int s = 0; s < steps; ++s) {
    for (int i = grid.thread_rank(); i < n; i += grid.size())
      b[i] = 0.5f * a[i] + 0.25f * (a[(i + 1) % n] + a[(i + n - 1) % n]);
    if (wait) grid.sync();
    float* const t = a;
    a = b;
    b = t;
  }
}
void missing_grid_sync() {
  Array<float> a(1000), b(1000);
  int n = 1000, steps = 4;
  bool wait = clean;
  void* arguments[] = {&a.data, &b.data, &n, &steps, &wait};
  check(
      cudaLaunchCooperativeKernel(reinterpret_cast<void*>(smooth), dim3(8), dim3(64), arguments, 0, nullptr));
  finish();
}
__global__ void read_only_path(const int* in, int* out) { out[threadIdx.x] = __ldg(in + threadIdx.x) + 1; }
void read_only_overwritten() {
  Array<int> a(32), b(32);
  read_only_path<<<1, 32>>>(a.data, clean ? b.data : a.data);
  finish();
}

// Races between streams

void kernels_of_two_streams() {
  TwoStreams s;
  Array<int> a(32), sum(1);
  finish();
  fill<<<1, 32, 0, s.first>>>(a.data, 32, 3);
  s.join();
  add_up<<<1, 32, 0, s.second>>>(a.data, 32, sum.data);
  finish();
}
void copy_in_another_stream() {
  TwoStreams s;
  Array<int> a(32);
  int* host = nullptr;
  check(cudaMallocHost(&host, 128));
  finish();
  fill<<<1, 32, 0, s.first>>>(a.data, 32, 3);
  s.join();
  check(cudaMemcpyAsync(host, a.data, 128, cudaMemcpyDeviceToHost, s.second));
  finish();
  check(cudaFreeHost(host));
}
void memset_beside_non_blocking_stream() {
  TwoStreams s;
  Array<int> a(32);
  finish();
  check(cudaMemset(a.data, 1, 128));  // in the default stream, which does not wait for non-blocking streams
  if (clean) finish();
  fill<<<1, 32, 0, s.first>>>(a.data, 32, 3);
  finish();
}

const Programs programs = {
    PROGRAM(blocks_write_one_place),
    PROGRAM(blocks_read_neighbours),
    PROGRAM(global_histogram_without_atomics),
    PROGRAM(last_block_without_fence),
    PROGRAM(last_block_of_atomics_without_fence),
    PROGRAM(volatile_data_without_fence),
    PROGRAM(plain_flag),
    PROGRAM(lock_not_taken),
    PROGRAM(missing_grid_sync),
    PROGRAM(read_only_overwritten),
    PROGRAM(kernels_of_two_streams),
    PROGRAM(copy_in_another_stream),
    PROGRAM(memset_beside_non_blocking_stream),
};

}  // namespace

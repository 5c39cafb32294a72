// Races in shared memory.
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include "faults.h"

namespace {

// Races in shared memory

__global__ void reversed(int* out, bool wait) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (wait) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}
void missing_syncthreads() {
  Array<int> a(64);
  reversed<<<1, 64>>>(a.data, clean);
  finish();
}
__global__ void tiles(const float* a, float* c, int n, bool wait) {
  __shared__ float s[8][8];
  float sum = 0;
  for (int k = 0; k < n; k += 8) {
    s[threadIdx.y][threadIdx.x] = a[threadIdx.y * n + k + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 8; ++j) sum += s[threadIdx.y][j] * s[j][threadIdx.x];
    if (wait) __syncthreads();
  }
  c[threadIdx.y * 8 + threadIdx.x] = sum;
}
void tile_overwritten() {
  Array<float> a(8 * 32), c(64);
  tiles<<<1, dim3(8, 8)>>>(a.data, c.data, 32, clean);
  finish();
}
__global__ void warp_sum(int* out, bool wait) {
  __shared__ volatile int plain[32];
  __shared__ int s[32];
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  for (int step = 16; step > 0; step /= 2) {
    const int other = threadIdx.x < step ? s[threadIdx.x + step] : 0;
    if (wait) __syncwarp();
    if (threadIdx.x < step) s[threadIdx.x] += other;
    if (wait) __syncwarp();
  }
  plain[threadIdx.x] = s[0];
  out[threadIdx.x] = plain[threadIdx.x];
}
void missing_syncwarp() {
  Array<int> a(32);
  warp_sum<<<1, 32>>>(a.data, clean);
  finish();
}
__global__ void shuffled_sum(int* out, bool wait) {
  __shared__ int s[32];
  int own = threadIdx.x;
  for (int step = 16; step > 0; step /= 2) {
    s[threadIdx.x] = own;
    __syncwarp();
    own += s[threadIdx.x ^ step];
    own = __shfl_sync(~0u, own, threadIdx.x);  // the lanes meet, but their accesses to memory are not ordered
    if (wait) __syncwarp();
  }
  out[threadIdx.x] = own;
}
void only_a_shuffle_between() {
  Array<int> a(32);
  shuffled_sum<<<1, 32>>>(a.data, clean);
  finish();
}
__global__ void double_buffer(const float* in, float* out, int n, bool wait) {
  __shared__ float s[2][64];
  float sum = 0;
  s[0][threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (int k = 0; k < n; ++k) {
    if (k + 1 < n) s[(k + 1) % 2][threadIdx.x] = in[(k + 1) * 64 + threadIdx.x];
    sum += s[k % 2][63 - threadIdx.x];
    if (wait) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
void double_buffer_without_barrier() {
  Array<float> in(4 * 64), out(64);
  double_buffer<<<1, 64>>>(in.data, out.data, 4, clean);
  finish();
}
__device__ void wait_at(int barrier) { asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory"); }
__device__ void arrive_at(int barrier) { asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory"); }
__global__ void producer_and_consumer(int* out, int rounds, bool wait) {
  __shared__ int buffer[32];
  const int lane = threadIdx.x % 32;
  int sum = 0;
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x < 32) {
      if (wait && r > 0) wait_at(2);
      buffer[lane] = r + lane;
      wait_at(1);
    } else {
      wait_at(1);
      sum += buffer[31 - lane];
      if (wait && r + 1 < rounds) arrive_at(2);
    }
  }
  out[threadIdx.x] = sum;
}
void buffer_filled_again_too_early() {
  Array<int> out(64);
  producer_and_consumer<<<1, 64>>>(out.data, 4, clean);
  finish();
}
__global__ void shared_behind_global_flag(volatile int* flag, int* out, bool fence) {
  __shared__ int value;
  if (threadIdx.x == 32) {
    value = blockDim.x;
    if (fence) __threadfence();
    *flag = 1;
  } else if (threadIdx.x == 0) {
    while (*flag == 0) {
    }
    __threadfence();
    *out = value;
  }
}
void flag_without_fence() {
  Array<int> flag(1), out(1);
  shared_behind_global_flag<<<1, 64>>>(flag.data, out.data, clean);
  finish();
}
__device__ __forceinline__ int reversed_by_a_library(int* s, bool wait) {
  s[threadIdx.x] = threadIdx.x;
  if (wait) __syncthreads();
  return s[63 - threadIdx.x];
}
__global__ void uses_a_library(int* out, bool wait) {
  __shared__ int s[64];
  out[threadIdx.x] = reversed_by_a_library(s, wait);
}
void race_in_inlined_code() {
  Array<int> out(64);
  uses_a_library<<<1, 64>>>(out.data, clean);
  finish();
}
__global__ void shared_histogram(const int* values, int* out, bool atomically) {
  __shared__ int bins[4];
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  __syncthreads();
  const int bin = values[threadIdx.x] & 3;
  if (atomically)
    atomicAdd(&bins[bin], 1);
  else
    bins[bin] += 1;
  __syncthreads();
  if (threadIdx.x < 4) out[threadIdx.x] = bins[threadIdx.x];
}
void histogram_without_atomics() {
  Array<int> values(64), out(4);
  shared_histogram<<<1, 64>>>(values.data, out.data, clean);
  finish();
}
__global__ void halves(__nv_bfloat16* out, int shift) {
  __shared__ __nv_bfloat16 s[65];
  s[threadIdx.x] = __float2bfloat16(threadIdx.x);
  if (shift) s[threadIdx.x + shift] = __float2bfloat16(1);
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}
void neighbours_in_a_word() {  // two bf16 of one word belong to two threads: no race; one bf16 with two writers is one
  Array<__nv_bfloat16> out(64);
  halves<<<1, 64>>>(out.data, clean ? 0 : 1);
  finish();
}
__global__ void same_value(int* out, int value) {
  __shared__ int flag;
  flag = value;
  __syncthreads();
  out[threadIdx.x] = flag;
}
__global__ void one_writer(int* out, int value) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = value;
  __syncthreads();
  out[threadIdx.x] = flag;
}
void equal_values() {  // a note
  Array<int> out(64);
  if (clean)
    one_writer<<<1, 64>>>(out.data, 7);
  else
    same_value<<<1, 64>>>(out.data, 7);
  finish();
}
__global__ void async_copy(const int* in, int* out, bool wait, bool barrier) {
  __shared__ int s[64];
  __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], sizeof(int));
  __pipeline_commit();
  if (wait) __pipeline_wait_prior(0);
  if (barrier) __syncthreads();
  out[threadIdx.x] = s[barrier ? 63 - threadIdx.x : threadIdx.x];
  if (!wait) __pipeline_wait_prior(0);
}
void async_copy_not_waited() {
  Array<int> in(64), out(64);
  async_copy<<<1, 64>>>(in.data, out.data, clean, false);
  finish();
}
__global__ void async_copy_of_neighbour(const int* in, int* out, bool barrier) {
  __shared__ int s[64];
  __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], sizeof(int));
  __pipeline_commit();
  __pipeline_wait_prior(0);
  if (barrier) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}
void async_copy_without_barrier() {
  Array<int> in(64), out(64);
  async_copy_of_neighbour<<<1, 64>>>(in.data, out.data, clean);
  finish();
}

// Memory written through the generic proxy and read by bulk copies, which are in the async proxy

__global__ void bulk_store(int* out, bool fence) {
  __shared__ alignas(16) int tile[64];
  tile[threadIdx.x] = threadIdx.x;
  if (fence) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(out), "r"(from)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
void bulk_store_without_proxy_fence() {
  Array<int> a(64);
  bulk_store<<<1, 64>>>(a.data, clean);
  finish();
}
// The thread that issues the copy may fence as well.
__global__ void bulk_load(int* in, int* out, bool fence) {
  __shared__ alignas(16) int tile[64];
  __shared__ alignas(8) unsigned long long arrived;
  const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(&arrived)),
                 to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
  in[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // not for global memory
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence) asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" ::"r"(barrier) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(to),
        "l"(in), "r"(barrier)
        : "memory");
  }
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier)
                 : "memory");
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
void bulk_load_without_proxy_fence() {
  Array<int> in(64), out(64);
  bulk_load<<<1, 64>>>(in.data, out.data, clean);
  finish();
}

const Programs programs = {
    PROGRAM(bulk_store_without_proxy_fence),
    PROGRAM(bulk_load_without_proxy_fence),
    PROGRAM(missing_syncthreads),
    PROGRAM(tile_overwritten),
    PROGRAM(missing_syncwarp),
    PROGRAM(only_a_shuffle_between),
    PROGRAM(double_buffer_without_barrier),
    PROGRAM(buffer_filled_again_too_early),
    PROGRAM(flag_without_fence),
    PROGRAM(race_in_inlined_code),
    PROGRAM(histogram_without_atomics),
    PROGRAM(neighbours_in_a_word),
    PROGRAM(equal_values),
    PROGRAM(async_copy_not_waited),
    PROGRAM(async_copy_without_barrier),
};

}  // namespace

// Barriers, warp operations, and how programs end.
#include <cstdio>

#include "faults.h"

namespace {

// Barriers and warp operations

__global__ void half_a_barrier(int* out, bool all) {
  if (all || threadIdx.x < 16) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    out[threadIdx.x] = 2;
    __syncthreads();
    out[threadIdx.x] += 1;
  }
}
void divergent_barrier() {
  Array<int> a(32);
  half_a_barrier<<<1, 32>>>(a.data, clean);
  finish();
}
__global__ void barriers_in_branches(int* out, bool together) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (together || threadIdx.x < 32) {
    __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];
  } else {
    __syncthreads();
    out[threadIdx.x] = -s[63 - threadIdx.x];
  }
}
void warps_at_different_barriers() {  // a warning: it works on GPUs, but __syncthreads() does not promise it
  Array<int> a(64);
  barriers_in_branches<<<1, 64>>>(a.data, clean);
  finish();
}
__global__ void two_barriers(int* out, bool first_only) {
  if (first_only || threadIdx.x < 32)
    asm volatile("bar.sync 1, 64;" ::: "memory");
  else
    asm volatile("bar.sync 2, 64;" ::: "memory");
  out[threadIdx.x] = 1;
}
void barrier_never_complete() {
  Array<int> a(64);
  two_barriers<<<1, 64>>>(a.data, clean);
  finish();
}
__global__ void counted_barrier(int* out, int second) {
  if (threadIdx.x < 32)
    asm volatile("bar.sync 1, 64;" ::: "memory");
  else
    asm volatile("bar.sync 1, %0;" ::"r"(second) : "memory");
  out[threadIdx.x] = 1;
}
void barrier_counts_differ() {
  Array<int> a(64);
  counted_barrier<<<1, 64>>>(a.data, clean ? 64 : 96);
  finish();
}
__global__ void shuffle_from_exited(int* out, bool all) {
  if (!all && threadIdx.x >= 16) return;
  out[threadIdx.x] = __shfl_sync(0xffffffff, threadIdx.x, 20);
}
__global__ void shuffle(int* out, unsigned mask, bool all) {
  int value = threadIdx.x;
  if (all || threadIdx.x < 16)
    value = __shfl_sync(mask, value, 20);
  else
    __syncwarp();
  out[threadIdx.x] = value;
}
void shuffle_waits_for_ever() {
  Array<int> a(32);
  shuffle<<<1, 32>>>(a.data, 0xffffffff, clean);
  finish();
}
void shuffle_from_outside() {
  Array<int> a(32);
  shuffle_from_exited<<<1, 32>>>(a.data, clean);
  finish();
}
__global__ void warp_barrier(int* out, bool all) {
  if (all || threadIdx.x < 16)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}
void syncwarp_waits_for_ever() {
  Array<int> a(32);
  warp_barrier<<<1, 32>>>(a.data, clean);
  finish();
}
__global__ void shuffle_mask(int* out, unsigned mask) {
  out[threadIdx.x] = __shfl_sync(mask, threadIdx.x, 3);
}
void shuffle_outside_its_mask() {
  Array<int> a(32);
  shuffle_mask<<<1, 32>>>(a.data, clean ? 0xffffffff : 0xffff);
  finish();
}

// The rest

__device__ int depth(int n) {
  volatile int room[256];
  room[n & 255] = n;
  return n <= 0 ? 0 : depth(n - 1) + room[n & 255];
}
__global__ void recursion(int* out, int n) { *out = depth(n); }
void stack_overflow() {
  Array<int> a(1);
  recursion<<<1, 1>>>(a.data, clean ? 3 : 100000);
  finish();
}
__global__ void trap_if(bool now) {
  if (now) __trap();
}
void trapped() {
  trap_if<<<1, 1>>>(!clean);
  finish();
}
__global__ void unknown(int* out, bool now) {
  unsigned value = 0;
  if (now) asm volatile("mov.u32 %0, %%pm0;" : "=r"(value));
  *out = value;
}
void unknown_instruction() {
  Array<int> a(1);
  unknown<<<1, 1>>>(a.data, !clean);
  finish();
}
void leak() {  // a note
  int* p = nullptr;
  check(cudaMalloc(&p, 128));
  if (clean) check(cudaFree(p));
}

// Programs that leave their result to an order which CUDA does not promise

__global__ void last_writer(int* p) { atomicExch(p, static_cast<int>(blockIdx.x)); }
__global__ void last_warp(int* p) {
  if (threadIdx.x % 32 == 0) atomicExch(p, static_cast<int>(threadIdx.x / 32));
}
void order() {
  TwoStreams s;
  Array<int> a(3);
  finish();
  last_writer<<<64, 1>>>(a.data);
  last_warp<<<1, 512>>>(a.data + 1);
  last_writer<<<1, 1, 0, s.first>>>(a.data + 2);
  last_warp<<<1, 64, 0, s.second>>>(a.data + 2);
  finish();
  int host[3];
  check(cudaMemcpy(host, a.data, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("block %d warp %d\n", host[0], host[1]);
}

const Programs programs = {
    PROGRAM(divergent_barrier),
    PROGRAM(warps_at_different_barriers),
    PROGRAM(barrier_never_complete),
    PROGRAM(barrier_counts_differ),
    PROGRAM(shuffle_waits_for_ever),
    PROGRAM(syncwarp_waits_for_ever),
    PROGRAM(shuffle_from_outside),
    PROGRAM(shuffle_outside_its_mask),
    PROGRAM(stack_overflow),
    PROGRAM(trapped),
    PROGRAM(unknown_instruction),
    PROGRAM(leak),
    PROGRAM(order),
};

}  // namespace

// Races between threads of one block in global memory.
#include "faults.h"

namespace {

__global__ void shifted(const int* in, int* scratch, int* out, bool wait) {
  scratch[threadIdx.x] = in[threadIdx.x] + 1;
  if (wait) __syncthreads();
  out[threadIdx.x] = scratch[(threadIdx.x + 40) % blockDim.x];
}
void global_scratch_without_barrier() {
  Array<int> in(128), scratch(128), out(128);
  shifted<<<1, 128>>>(in.data, scratch.data, out.data, clean);
  finish();
}

__global__ void within_warps(int* scratch, int* out, bool wait) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  scratch[i] = i;
  if (wait) __syncwarp();
  out[i] = scratch[i ^ 5];
}
void global_scratch_without_syncwarp() {
  Array<int> scratch(256), out(256);
  within_warps<<<2, 128>>>(scratch.data, out.data, clean);
  finish();
}

__global__ void counted(int* counter, bool atomically) {
  if (atomically)
    atomicAdd(counter, 1);
  else
    *counter += 1;
}
void global_counter_without_atomics() {
  Array<int> counter(1);
  counted<<<1, 128>>>(counter.data, clean);
  finish();
}

__global__ void one_of_all(int* p, bool own) { p[own ? threadIdx.x : 0] = threadIdx.x; }
void lanes_write_one_place() {
  Array<int> p(32);
  one_of_all<<<1, 32>>>(p.data, clean);
  finish();
}

__global__ void added_up(const int* in, int* sum, int* out, bool wait) {
  atomicAdd(sum, in[threadIdx.x]);
  if (wait) __syncthreads();
  if (threadIdx.x == 0) *out = *sum;
}
void atomic_sum_read_too_early() {
  Array<int> in(128), sum(1), out(1);
  added_up<<<1, 128>>>(in.data, sum.data, out.data, clean);
  finish();
}

__global__ void halved(int* p, int* out, bool wait) {
  out[threadIdx.x] = p[0] + p[threadIdx.x];
  if (wait) __syncthreads();
  if (threadIdx.x == 37) p[0] = 5;
}
void overwritten_while_read() {
  Array<int> p(128), out(128);
  halved<<<1, 128>>>(p.data, out.data, clean);
  finish();
}

/// Rows of 33 halves: words and lines that two rows share.
__global__ void odd_rows(short* rows, short* out, bool wait) {
  const int row = threadIdx.x / 33, column = threadIdx.x % 33;
  rows[threadIdx.x] = static_cast<short>(row);
  if (wait) __syncthreads();
  out[threadIdx.x] = rows[((row + 1) % 3) * 33 + column];
}
void odd_rows_of_halves() {
  Array<short> rows(100), out(100);
  odd_rows<<<1, 99>>>(rows.data, out.data, clean);
  finish();
}

__global__ void vectors(float4* scratch, float* out, bool wait) {
  scratch[threadIdx.x] = make_float4(threadIdx.x, 1, 2, 3);
  if (wait) __syncthreads();
  for (int k = 0; k < 4; ++k)
    out[k * blockDim.x + threadIdx.x] = reinterpret_cast<float*>(scratch)[k * blockDim.x + threadIdx.x];
}
void vectors_read_as_words() {
  Array<float4> scratch(64);
  Array<float> out(256);
  vectors<<<1, 64>>>(scratch.data, out.data, clean);
  finish();
}

/// Two warps fill a buffer, two others use it: the barrier must be one of all four.
__global__ void halves_of_a_block(int* buffer, int* out, bool right) {
  const int t = threadIdx.x % 64;
  if (threadIdx.x < 64) {
    buffer[t] = t;
    if (right)
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    else
      asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    if (right)
      asm volatile("bar.sync 1, 128;" ::: "memory");
    else
      asm volatile("bar.sync 2, 64;" ::: "memory");
    out[t] = buffer[63 - t];
  }
}
void wrong_named_barrier() {
  Array<int> buffer(64), out(64);
  halves_of_a_block<<<1, 128>>>(buffer.data, out.data, clean);
  finish();
}

/// A flag between warps of one block. The store to data[2] stands behind the fence and is nobody's business.
__global__ void flag_in_block(int* data, int* flag, bool fence) {
  if (threadIdx.x == 0) {
    data[0] = 42;
    if (fence) __threadfence_block();
    data[2] = 1;
    atomicExch(flag, 1);
  } else if (threadIdx.x == 32) {
    while (atomicAdd(flag, 0) == 0) {
    }
    __threadfence_block();
    data[1] = data[0];
  }
}
void flag_in_block_without_fence() {
  Array<int> data(3), flag(1);
  flag_in_block<<<1, 64>>>(data.data, flag.data, clean);
  finish();
}

/// Warps that find something say so. Lanes of one store are no race.
__global__ void found(const int* in, int* flag, bool one_warp) {
  if (in[threadIdx.x] == 0 && (!one_warp || threadIdx.x < 32)) *flag = 1;
}
void global_equal_values() {
  Array<int> in(64), flag(1);
  found<<<1, 64>>>(in.data, flag.data, clean);
  finish();
}

const Programs programs = {
    PROGRAM(global_scratch_without_barrier),
    PROGRAM(global_scratch_without_syncwarp),
    PROGRAM(global_counter_without_atomics),
    PROGRAM(lanes_write_one_place),
    PROGRAM(atomic_sum_read_too_early),
    PROGRAM(overwritten_while_read),
    PROGRAM(odd_rows_of_halves),
    PROGRAM(vectors_read_as_words),
    PROGRAM(wrong_named_barrier),
    PROGRAM(flag_in_block_without_fence),
    PROGRAM(global_equal_values),
};

}  // namespace

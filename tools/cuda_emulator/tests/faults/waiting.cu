// Kernels that wait for what never comes, or do not wait where they must.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "faults.h"

namespace {

// Flags and locks

__global__ void wait_for_flag(volatile int* flag, int* out, bool raised) {
  if (blockIdx.x == 1) {
    if (raised && threadIdx.x == 0) *flag = 1;
    return;
  }
  while (*flag == 0) {
  }
  out[threadIdx.x] = 1;
}
void flag_never_raised() {
  Array<int> a(257);
  wait_for_flag<<<2, 256>>>(a.data + 256, a.data, clean);
  finish();
}
__global__ void take_lock(int* lock, int* count, bool releases) {
  if (threadIdx.x) return;
  while (atomicCAS(lock, 0, 1) != 0) __nanosleep(100);
  __threadfence();
  ++*count;
  __threadfence();
  if (releases) atomicExch(lock, 0);
}
void lock_never_released() {
  Array<int> a(2);
  take_lock<<<40, 64>>>(a.data, a.data + 1, clean);
  finish();
}
__global__ void wait_in_step(int* flag, int* out, bool raised) {
  __shared__ int seen;
  if (blockIdx.x == 1) {
    if (raised && threadIdx.x == 0) atomicExch(flag, 1);
    return;
  }
  do {
    __syncthreads();
    if (threadIdx.x == 0) seen = atomicAdd(flag, 0);
    __syncthreads();
  } while (!seen);
  out[threadIdx.x] = 1;
}
void flag_polled_between_barriers() {
  Array<int> a(65);
  wait_in_step<<<2, 64>>>(a.data + 64, a.data, clean);
  finish();
}
__global__ void wait_for_lane(volatile int* flag, bool all) {
  if (threadIdx.x == 0) {
    if (all) *flag = 1;
    while (*flag == 0) {
    }
  } else {
    while (flag[0] == 0) __nanosleep(20);
  }
}
void flag_of_the_own_warp() {
  Array<int> a(1);
  wait_for_lane<<<1, 32>>>(a.data, clean);
  finish();
}

// Barrier objects

__device__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
__global__ void copy_tile(const int* in, int* out, int expected) {
  __shared__ alignas(16) int tile[64];
  __shared__ alignas(8) std::uint64_t barrier;
  const std::uint32_t at = shared_address(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(expected) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(
            shared_address(tile)),
        "l"(in), "r"(at)
        : "memory");
  }
  std::uint32_t done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(at)
                 : "memory");
  out[threadIdx.x] = tile[threadIdx.x];
}
void wrong_expect_tx() {
  Array<int> a(128);
  copy_tile<<<1, 64>>>(a.data, a.data + 64, clean ? 256 : 512);
  finish();
}

// Blocks that cannot all be resident. A multiprocessor holds two blocks of 100 KiB of shared memory.

__global__ void grid_barrier(unsigned* come, int* out) {
  extern __shared__ int used[];
  used[threadIdx.x] = 1;
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(come, 1u);
    while (*static_cast<volatile unsigned*>(come) < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = used[threadIdx.x];
}
void more_blocks_than_fit() {
  const int blocks = clean ? 264 : 265;
  Array<int> a(265 * 32 + 1);
  check(cudaFuncSetAttribute(grid_barrier, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
  grid_barrier<<<blocks, 32, 100 << 10>>>(reinterpret_cast<unsigned*>(a.data), a.data + 1);
  finish();
}
__global__ void __launch_bounds__(1024) chain(volatile int* flags, bool from_below) {
  const int other = from_below ? static_cast<int>(blockIdx.x) - 1 : static_cast<int>(gridDim.x - 1);
  if (threadIdx.x == 0) {
    if (other >= 0 && other != static_cast<int>(blockIdx.x))
      while (flags[other] == 0) {
      }
    __threadfence();
    flags[blockIdx.x] = 1;
  }
}
void waits_for_the_last_block() {  // in the clean program each block waits for the one before it
  Array<int> a(400);
  chain<<<400, 1024>>>(a.data, clean);
  finish();
}

// Dependent launches

__global__ void produce(int* out, int n) {
  asm volatile("griddepcontrol.launch_dependents;");
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) out[i] += i;
}
__global__ void consume(const int* in, int* out, int n, bool waits) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ int offset;
  if (threadIdx.x == 0) offset = 3;
  __syncthreads();
  if (waits) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) out[i] = in[i] + offset;
}
template <class... Parameters, class... Arguments>
void launch_dependent(void (*kernel)(Parameters...), int blocks, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(64);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}
void dependent_launch_without_wait() {
  constexpr int n = 640;
  Array<int> a(2 * n);
  produce<<<10, 64>>>(a.data, n);
  launch_dependent(produce, 10, a.data, n);
  launch_dependent(consume, 10, a.data, a.data + n, n, clean);
  launch_dependent(produce, 10, a.data + n, n);
  int host[2 * n];
  check(cudaMemcpy(host, a.data, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i)
    if (clean && (host[i] != 2 * i || host[n + i] != 3 * i + 3)) {
      std::printf("%d: %d and %d\n", i, host[i], host[n + i]);
      return;
    }
}

// Signals that come while a kernel runs

__global__ void wait_for_ever(volatile int* running, volatile int* flag) {
  if (threadIdx.x == 0) *running = 1;
  while (*flag == 0) {
  }
}
void send_when_running(int number) {
  int* running = nullptr;
  check(cudaMallocHost(&running, sizeof(int)));
  *running = 0;
  Array<int> a(1);
  std::thread([running, number] {
    while (!*static_cast<volatile int*>(running)) std::this_thread::yield();
    kill(getpid(), number);
  }).detach();
  wait_for_ever<<<1, 256>>>(running, a.data);
  finish();
}
void terminated() { send_when_running(SIGTERM); }
void interrupted() { send_when_running(SIGINT); }

// Not a fault: computes for long and stores nothing meanwhile.

__global__ void compute(unsigned* out, const unsigned* seed, int steps) {
  unsigned x = *seed;
  for (int k = 0; k < steps; ++k) x = x * 1664525u + (x >> 3);
  *out = x;
}
void long_computation() {
  Array<unsigned> a(2);
  compute<<<1, 1>>>(a.data, a.data + 1, 3'000'000);
  finish();
}

const Programs programs = {
    PROGRAM(flag_never_raised),
    PROGRAM(lock_never_released),
    PROGRAM(flag_polled_between_barriers),
    PROGRAM(flag_of_the_own_warp),
    PROGRAM(wrong_expect_tx),
    PROGRAM(more_blocks_than_fit),
    PROGRAM(waits_for_the_last_block),
    PROGRAM(dependent_launch_without_wait),
    PROGRAM(terminated),
    PROGRAM(interrupted),
    PROGRAM(long_computation),
};

}  // namespace

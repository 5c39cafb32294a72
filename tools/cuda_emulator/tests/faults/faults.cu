// Planted faults and their clean twins: `faults NAME` runs a program with one mistake, `faults NAME clean` the same program
// without it. faults_test.cpp demands a report for the one and silence for the other.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace cg = cooperative_groups;

namespace {

bool clean = false;

void check(cudaError_t error) {
  if (error != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorName(error));
}
void finish() { check(cudaDeviceSynchronize()); }

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

// Bounds, alignment, lifetime

__global__ void fill(int* p, int n, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = value;
}
__global__ void add_up(const int* p, int n, int* sum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(sum, p[i]);
}
void write_past_end() {
  Array<int> a(100);
  fill<<<4, 32>>>(a.data, clean ? 100 : 101, 1);
  finish();
}
void read_past_end() {
  Array<int> a(100), sum(1);
  add_up<<<4, 32>>>(a.data, clean ? 100 : 103, sum.data);
  finish();
}
void write_before_begin() {
  Array<int> a(64);
  fill<<<1, 32>>>(clean ? a.data : a.data - 1, 32, 1);
  finish();
}
void null_pointer() {
  Array<int> a(32);
  fill<<<1, 32>>>(clean ? a.data : nullptr, 32, 1);
  finish();
}
void host_pointer() {
  Array<int> a(32);
  static int host[32];
  fill<<<1, 32>>>(clean ? a.data : host, 32, 1);
  finish();
}
__global__ void shared_index(int* out, int shift) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x + shift];
}
void shared_past_end() {
  Array<int> a(32);
  shared_index<<<1, 32, 32 * sizeof(int)>>>(a.data, clean ? 0 : 1);
  finish();
}
__global__ void wide(const char* p, float4* out) { *out = *reinterpret_cast<const float4*>(p); }
void misaligned() {
  Array<char> a(64);
  Array<float4> out(1);
  wide<<<1, 1>>>(a.data + (clean ? 16 : 8), out.data);
  finish();
}
void use_after_free() {
  int* p = nullptr;
  check(cudaMalloc(&p, 128));
  if (clean) fill<<<1, 32>>>(p, 32, 1);
  finish();
  check(cudaFree(p));
  if (!clean) fill<<<1, 32>>>(p, 32, 1);
  finish();
}
void use_after_stream_free() {
  cudaStream_t s;
  check(cudaStreamCreate(&s));
  int* p = nullptr;
  check(cudaMallocAsync(&p, 128, s));
  if (clean) fill<<<1, 32, 0, s>>>(p, 32, 1);
  check(cudaFreeAsync(p, s));
  if (!clean) fill<<<1, 32, 0, s>>>(p, 32, 1);
  finish();
  check(cudaStreamDestroy(s));
}
void free_before_other_stream() {
  cudaStream_t s, t;
  cudaEvent_t allocated, used;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
  check(cudaEventCreate(&allocated));
  check(cudaEventCreate(&used));
  int* p = nullptr;
  check(cudaMallocAsync(&p, 128, s));
  check(cudaEventRecord(allocated, s));
  check(cudaStreamWaitEvent(t, allocated));
  fill<<<1, 32, 0, t>>>(p, 32, 1);
  check(cudaEventRecord(used, t));
  if (clean) check(cudaStreamWaitEvent(s, used));
  check(cudaFreeAsync(p, s));
  finish();
  check(cudaEventDestroy(allocated));
  check(cudaEventDestroy(used));
  check(cudaStreamDestroy(s));
  check(cudaStreamDestroy(t));
}

void other_device_without_peer_access() {  // with two devices
  check(cudaSetDevice(1));
  Array<int> there(32);
  finish();
  check(cudaSetDevice(0));
  if (clean) check(cudaDeviceEnablePeerAccess(1, 0));
  Array<int> here(32);
  check(cudaMemcpyPeer(here.data, 0, there.data, 1, 128));  // needs no access
  fill<<<1, 32>>>(there.data, 32, 1);
  finish();
}
void pool_of_another_device() {  // with two devices
  check(cudaSetDevice(1));
  cudaMemPool_t pool;
  check(cudaDeviceGetDefaultMemPool(&pool, 1));
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 0};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  if (clean) check(cudaMemPoolSetAccess(pool, &access, 1));
  int* there = nullptr;
  check(cudaMallocAsync(&there, 128, cudaStreamLegacy));
  finish();
  check(cudaSetDevice(0));
  check(cudaDeviceEnablePeerAccess(1, 0));  // does not hold for pools
  fill<<<1, 32>>>(there, 32, 1);
  finish();
  check(cudaSetDevice(1));
  check(cudaFreeAsync(there, cudaStreamLegacy));
  finish();
}

// Memory that nobody has written

void global_never_written() {
  Array<int> a(64, clean), sum(1);
  add_up<<<2, 32>>>(a.data, 64, sum.data);
  finish();
}
__global__ void partly_written(int* out, int from) {
  __shared__ int s[64];
  if (threadIdx.x >= from) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}
void shared_never_written() {
  Array<int> a(64);
  partly_written<<<1, 64>>>(a.data, clean ? 0 : 5);
  finish();
}
// A loop that loads one item further than it needs, as merges do. The twin drops the item.
__global__ void one_behind(int* out, bool drop) {
  __shared__ int s[64];
  if (threadIdx.x < 63) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const int next = *static_cast<volatile int*>(&s[threadIdx.x]);
  out[threadIdx.x] = drop && threadIdx.x == 63 ? -1 : next;
}
void unwritten_item_used() {
  Array<int> a(64);
  one_behind<<<1, 64>>>(a.data, clean);
  finish();
}
__global__ void branch_on_item(int* out, bool compare) {
  __shared__ int s[64];
  if (threadIdx.x < 32) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const int item = *static_cast<volatile int*>(&s[threadIdx.x]);
  if (compare && item > 5) atomicAdd(out, 1);
}
void unwritten_branch() {
  Array<int> a(1);
  branch_on_item<<<1, 64>>>(a.data, !clean);
  finish();
}
__global__ void index_by_item(int* out, bool own) {
  __shared__ int s[64];
  if (own) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[s[threadIdx.x] & 63] = 1;
}
void unwritten_index() {
  Array<int> a(64);
  index_by_item<<<1, 64>>>(a.data, clean);
  finish();
}
__global__ void masked_item(int* out, int mask) {
  __shared__ alignas(4) unsigned char s[64 * 4];
  s[threadIdx.x * 4] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = (reinterpret_cast<const int*>(s)[threadIdx.x] & mask) + 1;
}
void unwritten_mask() {
  Array<int> a(64);
  masked_item<<<1, 64>>>(a.data, clean ? 0xff : 0xfff);
  finish();
}
__global__ void local_array(int* out, int at) {
  __shared__ int s[64];
  if (threadIdx.x % 2) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  int kept[8] = {};
  kept[threadIdx.x % 2] = s[threadIdx.x / 2 * 2];
  kept[2 + threadIdx.x % 2] = s[threadIdx.x / 2 * 2 + 1];
  out[threadIdx.x] = kept[at + threadIdx.x % 2] * 3;
}
void unwritten_through_local_array() {
  Array<int> a(64);
  local_array<<<1, 64>>>(a.data, clean ? 2 : 0);
  finish();
}
struct Items {
  int first, second;
};
__device__ __noinline__ Items exchanged(Items items, int* count) {
  ++*count;
  return {items.second, items.first};
}
__global__ void through_function(int* out, int* count, bool second) {
  __shared__ int s[32], t[32];
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  const Items items =
      exchanged({s[threadIdx.x], *static_cast<volatile int*>(&t[threadIdx.x])}, count + threadIdx.x);
  out[threadIdx.x] = (second ? items.second : items.first) + 1;
}
void unwritten_through_function() {
  Array<int> a(32), count(32);
  through_function<<<1, 32>>>(a.data, count.data, clean);
  finish();
}
__global__ void print_item(bool print) {
  __shared__ int s[32];
  const int item = *static_cast<volatile int*>(&s[threadIdx.x]);
  if (print) printf("%d", item);
}
void unwritten_printed() {
  print_item<<<1, 32>>>(!clean);
  finish();
}
// A struct with padding may be copied; its bytes may not be used.
struct Padded {
  int number;
  double value;
};
__global__ void fill_padded(Padded* p) {
  p[threadIdx.x].number = threadIdx.x;
  p[threadIdx.x].value = 1;
}
__global__ void copy_padded(const Padded* p, Padded* q) {
  __shared__ Padded s[32];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  q[threadIdx.x] = s[31 - threadIdx.x];
}
__global__ void sum_words(const int* p, int* sum, int step) { atomicAdd(sum, p[threadIdx.x * step]); }
void unwritten_padding_read() {
  Array<Padded> a(32, false), b(32, false);
  Array<int> sum(1);
  fill_padded<<<1, 32>>>(a.data);
  copy_padded<<<1, 32>>>(a.data, b.data);
  sum_words<<<1, 32>>>(reinterpret_cast<const int*>(b.data), sum.data, clean ? 4 : 1);
  finish();
}
void unwritten_copy() {  // a note: the host may copy padding on purpose
  Array<int> a(64, clean);
  int host[64];
  check(cudaMemcpy(host, a.data, sizeof host, cudaMemcpyDeviceToHost));
}

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
void last_block_without_fence() {  // a warning: the atomic orders it here, not on every GPU
  Array<int> values(256), partial(8), sum(1);
  Array<unsigned> count(1);
  last_block_sum<<<8, 32>>>(values.data, partial.data, count.data, sum.data, clean);
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

constexpr struct {
  const char* name;
  void (*run)();
} programs[] = {
#define PROGRAM(name) \
  { #name, name }
    PROGRAM(write_past_end),
    PROGRAM(read_past_end),
    PROGRAM(write_before_begin),
    PROGRAM(null_pointer),
    PROGRAM(host_pointer),
    PROGRAM(shared_past_end),
    PROGRAM(misaligned),
    PROGRAM(use_after_free),
    PROGRAM(use_after_stream_free),
    PROGRAM(free_before_other_stream),
    PROGRAM(other_device_without_peer_access),
    PROGRAM(pool_of_another_device),
    PROGRAM(global_never_written),
    PROGRAM(shared_never_written),
    PROGRAM(unwritten_item_used),
    PROGRAM(unwritten_branch),
    PROGRAM(unwritten_index),
    PROGRAM(unwritten_mask),
    PROGRAM(unwritten_through_local_array),
    PROGRAM(unwritten_through_function),
    PROGRAM(unwritten_printed),
    PROGRAM(unwritten_padding_read),
    PROGRAM(unwritten_copy),
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
    PROGRAM(blocks_write_one_place),
    PROGRAM(blocks_read_neighbours),
    PROGRAM(global_histogram_without_atomics),
    PROGRAM(last_block_without_fence),
    PROGRAM(plain_flag),
    PROGRAM(lock_not_taken),
    PROGRAM(missing_grid_sync),
    PROGRAM(read_only_overwritten),
    PROGRAM(kernels_of_two_streams),
    PROGRAM(copy_in_another_stream),
    PROGRAM(memset_beside_non_blocking_stream),
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

int main(int argc, char** argv) {
  clean = argc > 2 && std::strcmp(argv[2], "clean") == 0;
  for (const auto& program : programs)
    if (argc > 1 && std::strcmp(argv[1], program.name) == 0) {
      program.run();
      return 0;
    }
  std::printf("faults NAME [clean]\n");
  for (const auto& program : programs) std::printf("  %s\n", program.name);
  return 2;
}

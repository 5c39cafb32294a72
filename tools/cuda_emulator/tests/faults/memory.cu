// Bounds, alignment, life of memory, and memory that nobody has written.
#include <cstdio>

#include "faults.h"

namespace {

// Bounds, alignment, lifetime

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
// Two variables side by side: the first one's end is not the end of shared memory.
__global__ void first_of_two(int* out, int shift) {
  __shared__ int first[32], second[32];
  first[threadIdx.x] = second[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = first[(threadIdx.x + 1) % 32] + second[(threadIdx.x + 1) % 32];
  unsigned bytes;
  asm("mov.u32 %0, %%total_smem_size;" : "=r"(bytes));
  if (bytes != 256) printf("shared memory: %u bytes\n", bytes);
  __syncthreads();
  first[threadIdx.x + shift] = second[threadIdx.x + shift] = 1;
  __syncthreads();
  out[threadIdx.x] += first[31 - threadIdx.x] + second[31 - threadIdx.x];
}
void shared_variable_past_end() {
  Array<int> a(32);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, first_of_two));
  if (attributes.sharedSizeBytes != 256)
    std::printf("shared memory: %zu bytes\n", attributes.sharedSizeBytes);
  first_of_two<<<1, 32>>>(a.data, clean ? 0 : 1);
  finish();
}
__global__ void static_and_dynamic(int* out, int shift) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[32];
  dynamic[threadIdx.x] = fixed[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = dynamic[31 - threadIdx.x] + fixed[threadIdx.x + shift];
}
void shared_variable_into_dynamic() {
  Array<int> a(32);
  static_and_dynamic<<<1, 32, 128>>>(a.data, clean ? 0 : 1);
  finish();
}
__device__ __noinline__ int* shared_of_a_function() {
  __shared__ int kept[32];
  return kept;
}
__global__ void through_a_function(int* out, int shift) {
  __shared__ int own[32];
  int* const kept = shared_of_a_function();
  own[threadIdx.x] = kept[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = own[31 - threadIdx.x] + *static_cast<volatile int*>(&kept[threadIdx.x + shift]);
}
void shared_variable_of_function_past_end() {
  Array<int> a(32);
  through_a_function<<<1, 32>>>(a.data, clean ? 0 : 1);
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
__global__ void partly_written_local(int* out, int from) {
  int kept[8];
  for (int k = from; k < 8; ++k) kept[(k + threadIdx.x) % 8] = k;
  out[threadIdx.x] = kept[(threadIdx.x + threadIdx.y) % 8] * 3;
}
void local_never_written() {
  Array<int> a(32);
  partly_written_local<<<1, 32>>>(a.data, clean ? 0 : 2);
  finish();
}
// A callee's array lies where another callee's array was.
__device__ __noinline__ int sum_of(int n, int written) {
  int kept[8];
  for (int k = 0; k < written; ++k) kept[(k * 3) % 8] = k;
  int sum = 0;
  for (int k = 0; k < 8; ++k) sum += kept[(k + n) % 8];
  return sum;
}
__global__ void calls_twice(int* out, int written) {
  out[threadIdx.x] = sum_of(threadIdx.x, 8);
  out[threadIdx.x] += sum_of(threadIdx.x + 1, written);
}
void local_of_an_earlier_call() {
  Array<int> a(32);
  calls_twice<<<1, 32>>>(a.data, clean ? 8 : 5);
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

const Programs programs = {
    PROGRAM(write_past_end),
    PROGRAM(read_past_end),
    PROGRAM(write_before_begin),
    PROGRAM(null_pointer),
    PROGRAM(host_pointer),
    PROGRAM(shared_past_end),
    PROGRAM(shared_variable_past_end),
    PROGRAM(shared_variable_into_dynamic),
    PROGRAM(shared_variable_of_function_past_end),
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
    PROGRAM(local_never_written),
    PROGRAM(local_of_an_earlier_call),
    PROGRAM(unwritten_through_function),
    PROGRAM(unwritten_printed),
    PROGRAM(unwritten_padding_read),
    PROGRAM(unwritten_copy),
};

}  // namespace

// Threads that work together: cooperative groups, last-block reductions, aggregated atomics, sorting networks, scans by hand.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <algorithm>
#include <numeric>

#include "program.h"

namespace cg = cooperative_groups;

__global__ void heat(float* a, float* b, int n, int steps) {
  const cg::grid_group grid = cg::this_grid();
  for (int s = 0; s < steps; ++s) {
    for (int i = grid.thread_rank(); i < n; i += grid.size())
      b[i] = 0.5f * a[i] + 0.25f * ((i > 0 ? a[i - 1] : 0) + (i + 1 < n ? a[i + 1] : 0));
    grid.sync();
    float* const t = a;
    a = b;
    b = t;
  }
}
bool grid_synchronisation() {
  int n = 5000, steps = 6;
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(i % 17);
  DeviceVector<float> a(values), b(n);
  float *pa = a.data(), *pb = b.data();
  int blocks = 0;
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, heat, 128, 0));
  if (blocks < 1) return false;
  void* arguments[] = {&pa, &pb, &n, &steps};
  CHECK_CUDA(
      cudaLaunchCooperativeKernel(reinterpret_cast<void*>(heat), dim3(24), dim3(128), arguments, 0, nullptr));
  for (int s = 0; s < steps; ++s) {
    std::vector<float> next(n);
    for (int i = 0; i < n; ++i)
      next[i] = 0.5f * values[i] + 0.25f * ((i > 0 ? values[i - 1] : 0) + (i + 1 < n ? values[i + 1] : 0));
    values = next;
  }
  return a.host() == values;
}

__global__ void tile_sums(const int* in, int* sums, int* scans, int* odd) {
  const cg::thread_block block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<8>(block);
  const int i = cg::this_grid().thread_rank();
  const int sum = cg::reduce(tile, in[i], cg::plus<int>());
  if (tile.thread_rank() == 0) sums[i / 8] = sum;
  scans[i] = cg::inclusive_scan(tile, in[i]);
  if (in[i] % 2) {
    const cg::coalesced_group active = cg::coalesced_threads();
    if (active.thread_rank() == 0)
      atomicAdd(odd, static_cast<int>(active.size()));  // one atomic for all of the group
  }
}
bool tiles_and_coalesced_groups() {
  const int n = 1024;
  std::vector<int> values(n);
  for (int i = 0; i < n; ++i) values[i] = i * 7 % 23;
  DeviceVector<int> in(values), sums(n / 8), scans(n), odd(std::vector<int>{0});
  tile_sums<<<8, 128>>>(in.data(), sums.data(), scans.data(), odd.data());
  std::vector<int> wanted(n / 8), wanted_scans(n);
  for (int t = 0; t < n / 8; ++t) {
    wanted[t] = std::accumulate(values.begin() + 8 * t, values.begin() + 8 * t + 8, 0);
    std::inclusive_scan(values.begin() + 8 * t, values.begin() + 8 * t + 8, wanted_scans.begin() + 8 * t);
  }
  return sums.host() == wanted && scans.host() == wanted_scans &&
         odd.host()[0] == std::count_if(values.begin(), values.end(), [](int v) { return v % 2; });
}

/// Tiles of several warps meet and pass values through scratch memory that cooperative groups have in the reserved part
/// of shared memory.
__global__ void large_tiles(const int* in, int* sums, int* scans, int* from_lane_5) {
  __shared__ cg::block_tile_memory<256> scratch;
  const cg::thread_block block = cg::this_thread_block(scratch);
  const auto tile = cg::tiled_partition<128>(block);
  const int i = cg::this_grid().thread_rank();
  sums[i] = cg::reduce(tile, in[i], cg::plus<int>());
  tile.sync();
  scans[i] = cg::exclusive_scan(tile, in[i]);
  from_lane_5[i] = tile.shfl(in[i], 5) + 1000 * tile.any(in[i] == 22);
}
bool tiles_of_several_warps() {
  const int n = 768, tile = 128;
  std::vector<int> values(n), wanted(n), wanted_scans(n), wanted_lane_5(n);
  for (int i = 0; i < n; ++i) values[i] = i * i % 23;
  for (int t = 0; t < n; t += tile) {
    const auto first = values.begin() + t, last = first + tile;
    std::fill_n(wanted.begin() + t, tile, std::accumulate(first, last, 0));
    std::exclusive_scan(first, last, wanted_scans.begin() + t, 0);
    std::fill_n(wanted_lane_5.begin() + t, tile, first[5] + 1000 * (std::find(first, last, 22) != last));
  }
  DeviceVector<int> in(values), sums(n), scans(n), lane_5(n);
  large_tiles<<<3, 256>>>(in.data(), sums.data(), scans.data(), lane_5.data());
  return sums.host() == wanted && scans.host() == wanted_scans && lane_5.host() == wanted_lane_5;
}

__global__ void sum_in_one_pass(const int* values, int n, int* partial, unsigned* ticket, int* sum) {
  __shared__ int s[256];
  __shared__ bool last;
  int own = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += values[i];
  s[threadIdx.x] = own;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = s[0];
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  int all = 0;
  for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) all += partial[b];
  s[threadIdx.x] = all;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum = s[0];
}
bool last_block_reduction() {
  std::vector<int> values(40'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i % 101);
  DeviceVector<int> in(values), partial(37), sum(1);
  DeviceVector<unsigned> ticket(std::vector<unsigned>{0});
  for (int again = 0; again < 2; ++again)
    sum_in_one_pass<<<37, 256>>>(in.data(), 40'000, partial.data(), ticket.data(), sum.data());
  return sum.host()[0] == std::accumulate(values.begin(), values.end(), 0);
}

__global__ void pick_even(const unsigned* in, int n, unsigned* out, int* count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && in[i] % 2 == 0) {
    // One atomic for all active lanes of the warp.
    const unsigned active = __activemask();
    const int leader = __ffs(active) - 1, lane = threadIdx.x % 32;
    int base = 0;
    if (lane == leader) base = atomicAdd(count, __popc(active));
    base = __shfl_sync(active, base, leader);
    out[base + __popc(active & ((1u << lane) - 1))] = in[i];
  }
}
bool warp_aggregated_atomics() {
  const std::vector<unsigned> values = random_words(10'000);
  DeviceVector<unsigned> in(values), out(values);
  DeviceVector<int> count(std::vector<int>{0});
  pick_even<<<40, 256>>>(in.data(), 10'000, out.data(), count.data());
  std::vector<unsigned> found = out.host(), wanted;
  found.resize(count.host()[0]);
  std::copy_if(values.begin(), values.end(), std::back_inserter(wanted),
               [](unsigned v) { return v % 2 == 0; });
  std::sort(found.begin(), found.end());
  std::sort(wanted.begin(), wanted.end());
  return found == wanted;
}

__global__ void bitonic(unsigned* values) {
  extern __shared__ unsigned s[];
  const unsigned i = threadIdx.x;
  s[i] = values[blockIdx.x * blockDim.x + i];
  __syncthreads();
  for (unsigned size = 2; size <= blockDim.x; size *= 2)
    for (unsigned step = size / 2; step > 0; step /= 2) {
      const unsigned j = i ^ step;
      if (j > i && (s[i] > s[j]) == ((i & size) == 0)) {
        const unsigned t = s[i];
        s[i] = s[j];
        s[j] = t;
      }
      __syncthreads();
    }
  values[blockIdx.x * blockDim.x + i] = s[i];
}
bool sorting_network() {
  std::vector<unsigned> values = random_words(2048);
  DeviceVector<unsigned> device(values);
  bitonic<<<4, 512, 512 * sizeof(unsigned)>>>(device.data());
  for (int b = 0; b < 4; ++b) std::sort(values.begin() + 512 * b, values.begin() + 512 * (b + 1));
  return device.host() == values;
}

/// A scan in one pass: each block waits for the sum of the blocks before it.
__global__ void chained_scan(const int* in, int* out, int n, volatile int* sums, volatile int* ready,
                             int* next) {
  __shared__ int block, before;
  __shared__ int warp_sums[8];
  if (threadIdx.x == 0) block = atomicAdd(next, 1);
  __syncthreads();
  const int i = block * 256 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int value = i < n ? in[i] : 0;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += warp_sums[w];
  if (threadIdx.x == 255) {
    int sum = 0;
    if (block > 0) {
      while (ready[block - 1] == 0) {
      }
      __threadfence();
      sum = sums[block - 1];
    }
    before = sum;
    sums[block] = sum + value;
    __threadfence();
    ready[block] = 1;
  }
  __syncthreads();
  if (i < n) out[i] = value + before;
}
bool scan_with_look_back() {
  const int n = 20'000, blocks = (n + 255) / 256;
  std::vector<int> values(n), wanted(n);
  for (int i = 0; i < n; ++i) values[i] = i % 13 - 4;
  std::inclusive_scan(values.begin(), values.end(), wanted.begin());
  DeviceVector<int> in(values), out(n), sums(blocks), ready(std::vector<int>(blocks, 0)),
      next(std::vector<int>{0});
  chained_scan<<<blocks, 256>>>(in.data(), out.data(), n, sums.data(), ready.data(), next.data());
  return out.host() == wanted;
}

__global__ void histogram(const unsigned* values, int n, unsigned* bins) {
  __shared__ unsigned own[64];
  for (int b = threadIdx.x; b < 64; b += blockDim.x) own[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[values[i] % 64], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 64; b += blockDim.x) atomicAdd(&bins[b], own[b]);
}
bool histogram_by_atomics() {
  const std::vector<unsigned> values = random_words(15'000);
  DeviceVector<unsigned> in(values), bins(std::vector<unsigned>(64, 0));
  histogram<<<10, 128>>>(in.data(), 15'000, bins.data());
  std::vector<unsigned> wanted(64, 0);
  for (const unsigned v : values) ++wanted[v % 64];
  return bins.host() == wanted;
}

/// Each tile of 64 or 128 threads turns its values round and adds them up. What its warps exchange is ordered by the tile alone.
template <int size>
__global__ void in_tiles(const int* in, int* turned, int* sums) {
  __shared__ int values[512];
  const auto tile = cg::tiled_partition<size>(cg::this_thread_block());
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int* const mine = values + tile.meta_group_rank() * size;
  for (int round = 0; round < 3; ++round) {
    mine[tile.thread_rank()] = in[i] + round;
    tile.sync();
    turned[i] = mine[size - 1 - tile.thread_rank()];
    tile.sync();
  }
  const int sum = cg::reduce(tile, in[i], cg::plus<int>());
  if (tile.thread_rank() == 0) sums[i / size] = sum;
}
template <int size>
bool right_in_tiles(const std::vector<int>& values) {
  const int n = static_cast<int>(values.size());
  DeviceVector<int> in(values), turned(n), sums(n / size);
  in_tiles<size><<<n / 512, 512>>>(in.data(), turned.data(), sums.data());
  const std::vector<int> out = turned.host(), found = sums.host();
  bool right = true;
  for (int i = 0; i < n; ++i) right &= out[i] == values[i / size * size + size - 1 - i % size] + 2;
  for (int t = 0; t < n / size; ++t)
    right &= found[t] == std::accumulate(values.begin() + t * size, values.begin() + (t + 1) * size, 0);
  return right;
}
bool tiles_order_shared_memory() {
  std::vector<int> values(2048);
  std::iota(values.begin(), values.end(), 5);
  return right_in_tiles<64>(values) && right_in_tiles<128>(values);
}

int main(int argc, char** argv) {
  return run_programs({{"grid_synchronisation", grid_synchronisation},
                       {"tiles_and_coalesced_groups", tiles_and_coalesced_groups},
                       {"tiles_of_several_warps", tiles_of_several_warps},
                       {"tiles_order_shared_memory", tiles_order_shared_memory},
                       {"last_block_reduction", last_block_reduction},
                       {"warp_aggregated_atomics", warp_aggregated_atomics},
                       {"sorting_network", sorting_network},
                       {"scan_with_look_back", scan_with_look_back},
                       {"histogram_by_atomics", histogram_by_atomics}},
                      argc, argv);
}

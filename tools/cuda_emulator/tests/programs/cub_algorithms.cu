// Algorithms of CUB on the device and in a block.
#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>

#include "program.h"

/// Calls one of CUB's two-step algorithms.
template <class F>
void with_storage(F f) {
  std::size_t bytes = 0;
  CHECK_CUDA(f(nullptr, bytes));
  void* storage = nullptr;
  CHECK_CUDA(cudaMalloc(&storage, bytes));
  CHECK_CUDA(f(storage, bytes));
  CHECK_CUDA(cudaFree(storage));
}

bool device_reduce() {
  const std::vector<unsigned> values = random_words(100'003);
  DeviceVector<unsigned> in(values), out(1);
  with_storage(
      [&](void* s, std::size_t& b) { return cub::DeviceReduce::Sum(s, b, in.data(), out.data(), 100'003); });
  return out.host()[0] == std::accumulate(values.begin(), values.end(), 0u);
}

bool device_scan() {
  const std::vector<unsigned> values = random_words(70'001);
  DeviceVector<unsigned> in(values), out(values.size());
  with_storage([&](void* s, std::size_t& b) {
    return cub::DeviceScan::ExclusiveSum(s, b, in.data(), out.data(), 70'001);
  });
  std::vector<unsigned> wanted(values.size());
  std::exclusive_scan(values.begin(), values.end(), wanted.begin(), 0u);
  return out.host() == wanted;
}

bool device_sort() {
  const std::vector<unsigned> keys = random_words(50'021);
  std::vector<unsigned> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  DeviceVector<unsigned> in(keys), out(keys.size()), values(order), sorted(keys.size());
  with_storage([&](void* s, std::size_t& b) {
    return cub::DeviceRadixSort::SortPairs(s, b, in.data(), out.data(), values.data(), sorted.data(), 50'021);
  });
  std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) { return keys[a] < keys[b]; });
  return sorted.host() == order;
}

struct IsOdd {
  __host__ __device__ bool operator()(unsigned v) const { return v & 1; }
};
bool device_select() {
  const std::vector<unsigned> values = random_words(30'011);
  DeviceVector<unsigned> in(values), out(values.size()), count(1);
  CHECK_CUDA(cudaMemset(out.data(), 0, values.size() * sizeof(unsigned)));
  with_storage([&](void* s, std::size_t& b) {
    return cub::DeviceSelect::If(s, b, in.data(), out.data(), count.data(), 30'011, IsOdd{});
  });
  std::vector<unsigned> wanted;
  std::copy_if(values.begin(), values.end(), std::back_inserter(wanted), IsOdd{});
  std::vector<unsigned> found = out.host();
  found.resize(count.host()[0]);
  return found == wanted;
}

template <int threads, int items>
__global__ void sort_blocks(unsigned* keys, unsigned* sums, unsigned* prefix) {
  using Load = cub::BlockLoad<unsigned, threads, items, cub::BLOCK_LOAD_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<unsigned, threads, items>;
  using Reduce = cub::BlockReduce<unsigned, threads>;
  using Scan = cub::BlockScan<unsigned, threads>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Sort::TempStorage sort;
    typename Reduce::TempStorage reduce;
    typename Scan::TempStorage scan;
  } storage;
  unsigned own[items], before[items];
  Load(storage.load).Load(keys + blockIdx.x * threads * items, own);
  __syncthreads();
  Sort(storage.sort).Sort(own);
  __syncthreads();
  const unsigned sum = Reduce(storage.reduce).Sum(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  __syncthreads();
  Scan(storage.scan).ExclusiveSum(own, before);
  for (int i = 0; i < items; ++i) {
    keys[(blockIdx.x * threads + threadIdx.x) * items + i] = own[i];
    prefix[(blockIdx.x * threads + threadIdx.x) * items + i] = before[i];
  }
}
bool block_algorithms() {
  constexpr int threads = 128, items = 4, blocks = 6, each = threads * items;
  std::vector<unsigned> values = random_words(blocks * each);
  DeviceVector<unsigned> keys(values), sums(blocks), prefix(values.size());
  sort_blocks<threads, items><<<blocks, threads>>>(keys.data(), sums.data(), prefix.data());
  CHECK_CUDA(cudaGetLastError());
  std::vector<unsigned> wanted_sums(blocks), wanted_prefix(values.size());
  for (int b = 0; b < blocks; ++b) {
    const auto begin = values.begin() + b * each;
    std::sort(begin, begin + each);
    wanted_sums[b] = std::accumulate(begin, begin + each, 0u);
    std::exclusive_scan(begin, begin + each, wanted_prefix.begin() + b * each, 0u);
  }
  return keys.host() == values && sums.host() == wanted_sums && prefix.host() == wanted_prefix;
}

int main(int argc, char** argv) {
  return run_programs({{"device_reduce", device_reduce},
                       {"device_scan", device_scan},
                       {"device_sort", device_sort},
                       {"device_select", device_select},
                       {"block_algorithms", block_algorithms}},
                      argc, argv);
}

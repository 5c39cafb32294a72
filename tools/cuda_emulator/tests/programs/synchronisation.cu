// Ways in which threads of correct programs wait for each other: flags, named barriers, barrier objects, pipelines, locks, partial masks.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>

#include <algorithm>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <numeric>

#include "program.h"

namespace cg = cooperative_groups;

namespace {

std::vector<int> small_numbers(int n) {
  std::vector<int> values(n);
  for (int i = 0; i < n; ++i) values[i] = (i * 37 + i / 11) % 19 - 6;
  return values;
}

// Decoupled look-back: a word holds status and value, so that no fence is needed; a warp looks at 32 predecessors at a time.

constexpr unsigned long long has_sum = 1ull << 32, has_prefix = 2ull << 32;

__device__ int look_back(const volatile unsigned long long* words, int tile) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int last = tile - 1; last >= 0; last -= 32) {
    const int at = last - lane;
    unsigned long long word = has_prefix;
    if (at >= 0)
      while (((word = words[at]) >> 32) == 0) {
      }
    const unsigned prefixes = __ballot_sync(~0u, word >> 33);
    const int first = prefixes ? __ffs(prefixes) - 1 : 31;
    before += __reduce_add_sync(~0u, lane <= first ? static_cast<int>(word) : 0);
    if (prefixes) break;
  }
  return before;
}
__global__ void scan(const int* in, int* out, int n, unsigned long long* words, int* tiles) {
  __shared__ int tile, before, sums[4];
  if (threadIdx.x == 0) tile = atomicAdd(tiles, 1);
  __syncthreads();
  const int i = tile * 128 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int value = i < n ? in[i] : 0;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  if (warp == 0) {
    const int sum = sums[0] + sums[1] + sums[2] + sums[3];
    volatile unsigned long long* const all = words;
    if (lane == 0) all[tile] = has_sum | static_cast<unsigned>(sum);
    const int found = look_back(words, tile);
    if (lane == 0) {
      all[tile] = has_prefix | static_cast<unsigned>(found + sum);
      before = found;
    }
  }
  __syncthreads();
  if (i < n) out[i] = before + value;
}
bool decoupled_look_back() {
  const int n = 7000, tiles = (n + 127) / 128;
  const std::vector<int> values = small_numbers(n);
  std::vector<int> wanted(n);
  std::inclusive_scan(values.begin(), values.end(), wanted.begin());
  DeviceVector<int> in(values), out(n), next(std::vector<int>{0});
  DeviceVector<unsigned long long> words(std::vector<unsigned long long>(tiles, 0));
  scan<<<tiles, 128>>>(in.data(), out.data(), n, words.data(), next.data());
  return out.host() == wanted;
}

// Producer and consumer warps with named barriers: two buffers, a barrier "full" and a barrier "empty" for each.

__device__ void wait_at(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
__device__ void arrive_at(int barrier) { asm volatile("bar.arrive %0, 128;" ::"r"(barrier) : "memory"); }

__global__ void specialised(const int* in, int* out, int rounds) {
  __shared__ int buffers[2][64];
  const int i = threadIdx.x % 64;
  if (threadIdx.x < 64) {  // produces
    for (int r = 0; r < rounds; ++r) {
      if (r >= 2) wait_at(3 + r % 2);  // until the buffer is empty
      buffers[r % 2][i] = in[r * 64 + i] * 2;
      __threadfence_block();
      arrive_at(1 + r % 2);
    }
  } else {
    int sum = 0;
    for (int r = 0; r < rounds; ++r) {
      wait_at(1 + r % 2);
      sum += buffers[r % 2][63 - i];
      if (r + 2 < rounds) arrive_at(3 + r % 2);
    }
    out[i] = sum;
  }
}
bool named_barriers() {
  const int rounds = 9;
  const std::vector<int> values = small_numbers(64 * rounds);
  DeviceVector<int> in(values), out(64);
  specialised<<<1, 128>>>(in.data(), out.data(), rounds);
  std::vector<int> wanted(64, 0);
  for (int r = 0; r < rounds; ++r)
    for (int i = 0; i < 64; ++i) wanted[i] += 2 * values[r * 64 + 63 - i];
  return out.host() == wanted;
}

// The same with barrier objects, and with a pipeline of the library.

using Barrier = cuda::barrier<cuda::thread_scope_block>;

__global__ void barrier_objects(const int* in, int* out, int rounds) {
  __shared__ int buffers[2][32];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ Barrier full[2], empty[2];
  if (threadIdx.x == 0)
    for (int b = 0; b < 2; ++b) {
      init(&full[b], 64);
      init(&empty[b], 64);
    }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (int r = 0; r < rounds; ++r) {
      empty[r % 2].arrive_and_wait();
      buffers[r % 2][lane] = in[r * 32 + lane] + r;
      (void)full[r % 2].arrive();
    }
  } else {
    (void)empty[0].arrive();
    (void)empty[1].arrive();
    int sum = 0;
    for (int r = 0; r < rounds; ++r) {
      full[r % 2].arrive_and_wait();
      sum = sum * 3 + buffers[r % 2][31 - lane];
      (void)empty[r % 2].arrive();
    }
    out[lane] = sum;
  }
}
bool producer_and_consumer_with_barriers() {
  const int rounds = 7;
  const std::vector<int> values = small_numbers(32 * rounds);
  DeviceVector<int> in(values), out(32);
  barrier_objects<<<1, 64>>>(in.data(), out.data(), rounds);
  std::vector<int> wanted(32, 0);
  for (int r = 0; r < rounds; ++r)
    for (int i = 0; i < 32; ++i) wanted[i] = wanted[i] * 3 + values[r * 32 + 31 - i] + r;
  return out.host() == wanted;
}

__global__ void staged(const int* in, int* out, int rounds) {
  constexpr int stages = 3;
  __shared__ int buffers[stages][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  const cg::thread_block block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  int sum = 0;
  for (int r = 0, next = 0; r < rounds; ++r) {
    for (; next < rounds && next < r + stages; ++next) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, buffers[next % stages], in + next * 64, sizeof(int) * 64, pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    sum += buffers[r % stages][(threadIdx.x + 5) % 64] * (r + 1);
    pipeline.consumer_release();
  }
  out[threadIdx.x] = sum;
}
bool pipeline_of_three_stages() {
  const int rounds = 8;
  const std::vector<int> values = small_numbers(64 * rounds);
  DeviceVector<int> in(values), out(64);
  staged<<<1, 64>>>(in.data(), out.data(), rounds);
  std::vector<int> wanted(64, 0);
  for (int r = 0; r < rounds; ++r)
    for (int i = 0; i < 64; ++i) wanted[i] += values[r * 64 + (i + 5) % 64] * (r + 1);
  return out.host() == wanted;
}

__global__ void roles(const int* in, int* out, int rounds) {
  __shared__ int buffers[2][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  const bool produces = threadIdx.x < 64;
  auto pipeline =
      cuda::make_pipeline(cg::this_thread_block(), &state,
                          produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
  const int i = threadIdx.x % 64;
  int sum = 0;
  for (int r = 0; r < rounds; ++r)
    if (produces) {
      pipeline.producer_acquire();
      cuda::memcpy_async(&buffers[r % 2][i], &in[r * 64 + i], sizeof(int), pipeline);
      pipeline.producer_commit();
    } else {
      pipeline.consumer_wait();
      sum = sum * 2 + buffers[r % 2][63 - i];
      pipeline.consumer_release();
    }
  if (!produces) out[i] = sum;
}
bool pipeline_with_roles() {
  const int rounds = 6;
  const std::vector<int> values = small_numbers(64 * rounds);
  DeviceVector<int> in(values), out(64);
  roles<<<1, 128>>>(in.data(), out.data(), rounds);
  std::vector<int> wanted(64, 0);
  for (int r = 0; r < rounds; ++r)
    for (int i = 0; i < 64; ++i) wanted[i] = wanted[i] * 2 + values[r * 64 + 63 - i];
  return out.host() == wanted;
}

// One barrier for each step, as the next tile goes to the other buffer.

__global__ void multiply(const float* a, const float* b, float* c, int n) {
  __shared__ float as[2][8][8], bs[2][8][8];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
  const auto load = [&](int tile) {
    as[tile % 2][y][x] = a[row * n + tile * 8 + x];
    bs[tile % 2][y][x] = b[(tile * 8 + y) * n + column];
  };
  float sum = 0;
  load(0);
  __syncthreads();
  for (int tile = 0; tile < n / 8; ++tile) {
    if (tile + 1 < n / 8) load(tile + 1);
    for (int k = 0; k < 8; ++k) sum += as[tile % 2][y][k] * bs[tile % 2][k][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
bool double_buffered_tiles() {
  const int n = 40;
  std::vector<float> a(n * n), b(n * n), wanted(n * n, 0);
  for (int i = 0; i < n * n; ++i) a[i] = static_cast<float>(i % 7), b[i] = static_cast<float>(i % 5);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j)
      for (int k = 0; k < n; ++k) wanted[i * n + j] += a[i * n + k] * b[k * n + j];
  DeviceVector<float> da(a), db(b), dc(n * n);
  multiply<<<dim3(n / 8, n / 8), dim3(8, 8)>>>(da.data(), db.data(), dc.data(), n);
  return dc.host() == wanted;
}

// Lanes of a warp that exchange values in shared memory, all of them and parts of them.

__global__ void transpose_in_warps(const int* in, int* out) {
  __shared__ int own[4][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = 0; r < 3; ++r) {
    own[warp][lane] = in[(r * 4 + warp) * 32 + lane];
    __syncwarp();
    out[(r * 4 + warp) * 32 + lane] = own[warp][lane % 8 * 4 + lane / 8];
    __syncwarp();
  }
  // The halves go different ways and work alone.
  if (lane < 16) {
    for (int r = 0; r <= warp; ++r) {
      own[warp][lane] += r;
      __syncwarp(0xffff);
      const int other = own[warp][lane ^ 1];
      __syncwarp(0xffff);
      own[warp][lane] = other;
    }
  } else {
    own[warp][lane] = lane;
    __syncwarp(0xffff0000);
    const int other = own[warp][47 - lane];
    __syncwarp(0xffff0000);
    own[warp][lane] = other;
  }
  __syncwarp();
  out[(12 + warp) * 32 + lane] = own[warp][31 - lane];
}
bool exchange_in_warps() {
  std::vector<int> values = small_numbers(12 * 32);
  DeviceVector<int> in(values), out(16 * 32);
  transpose_in_warps<<<1, 128>>>(in.data(), out.data());
  std::vector<int> wanted(16 * 32);
  for (int w = 0; w < 12; ++w)
    for (int l = 0; l < 32; ++l) wanted[w * 32 + l] = values[w * 32 + l % 8 * 4 + l / 8];
  for (int w = 0; w < 4; ++w) {
    std::vector<int> own(values.begin() + (8 + w) * 32, values.begin() + (9 + w) * 32);
    for (int r = 0; r <= w; ++r) {
      for (int l = 0; l < 16; ++l) own[l] += r;
      for (int l = 0; l < 16; l += 2) std::swap(own[l], own[l + 1]);
    }
    for (int l = 16; l < 32; ++l) own[l] = 47 - l;
    for (int l = 0; l < 32; ++l) wanted[(12 + w) * 32 + l] = own[31 - l];
  }
  return out.host() == wanted;
}

__global__ void groups(const int* in, int* out, int n) {
  __shared__ int s[96];
  const cg::thread_block block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto tile = cg::tiled_partition<4>(warp);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;  // whole tiles of four stay
  s[threadIdx.x] = in[i];
  tile.sync();
  int value = s[threadIdx.x ^ 3];
  tile.sync();
  s[threadIdx.x] = value;
  if (value % 3 == 0) {  // lanes that happen to be together
    const cg::coalesced_group some = cg::coalesced_threads();
    some.sync();
    const int sum = cg::reduce(some, 1, cg::plus<int>());
    value += some.shfl(value, 0) * 0 + (sum == static_cast<int>(some.size()) ? 100 : 1000);
  }
  if (tile.meta_group_rank() % 2) {
    tile.sync();
    value += s[threadIdx.x ^ 1];
  }
  out[i] = value;
}
bool groups_with_partial_masks() {
  const int n = 96 + 44;  // the last warp ends in the middle
  const std::vector<int> values = small_numbers(n);
  DeviceVector<int> in(values), out(n);
  groups<<<2, 96>>>(in.data(), out.data(), n);
  std::vector<int> wanted(n);
  for (int i = 0; i < n; ++i) {
    const int value = values[i ^ 3];
    wanted[i] = value + (value % 3 == 0 ? 100 : 0) + (i % 96 / 4 % 2 ? values[(i ^ 3) ^ 1] : 0);
  }
  return out.host() == wanted;
}

// Tiles of two warps wait for each other in memory that the system reserves.

__global__ void large_tiles(const int* in, int* out) {
  __shared__ cg::block_tile_memory<256> memory;
  __shared__ int s[256];
  const auto tile = cg::tiled_partition<64>(cg::this_thread_block(memory));
  s[threadIdx.x] = in[threadIdx.x];
  tile.sync();
  const int value = s[threadIdx.x ^ 63];
  out[threadIdx.x] = cg::reduce(tile, value, cg::plus<int>()) + tile.shfl(value, 5);
}
bool tiles_of_two_warps() {
  const std::vector<int> values = small_numbers(256);
  DeviceVector<int> in(values), out(256);
  large_tiles<<<1, 256>>>(in.data(), out.data());
  std::vector<int> wanted(256);
  for (int i = 0; i < 256; ++i) {
    const int first = i / 64 * 64;
    wanted[i] = std::accumulate(values.begin() + first, values.begin() + first + 64, 0) + values[first + 58];
  }
  return out.host() == wanted;
}

// Threads that have nothing to do leave before the barrier.

__global__ void early_return(const int* in, int n, int* out) {
  __shared__ int s[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  s[threadIdx.x] = in[i];
  __syncthreads();
  const int there = min(static_cast<int>(blockDim.x), n - static_cast<int>(blockIdx.x * blockDim.x));
  out[i] = s[there - 1 - threadIdx.x];
}
bool threads_return_before_a_barrier() {
  const int n = 64 + 40;
  const std::vector<int> values = small_numbers(n);
  DeviceVector<int> in(values), out(n);
  early_return<<<2, 64>>>(in.data(), n, out.data());
  std::vector<int> wanted(values);
  std::reverse(wanted.begin(), wanted.begin() + 64);
  std::reverse(wanted.begin() + 64, wanted.end());
  return out.host() == wanted;
}

// A loop that all threads leave together.

__global__ void until_all_are_done(int* values) {
  __shared__ int s[64];
  const int i = threadIdx.x;
  int own = values[i];
  do {
    s[i] = own;
    __syncthreads();
    own = max(own, max(s[(i + 1) % 64], s[(i + 63) % 64]));
  } while (__syncthreads_or(own != s[i]));
  values[i] = own;
}
bool loop_until_all_are_done() {
  std::vector<int> values = small_numbers(64);
  DeviceVector<int> device(values);
  until_all_are_done<<<1, 64>>>(device.data());
  return device.host() == std::vector<int>(64, *std::max_element(values.begin(), values.end()));
}

// Locks in global and in shared memory, and a ticket lock.

__global__ void locks(int* lock, int* counter, unsigned* ticket, int* order) {
  __shared__ int inner, shared_counter;
  if (threadIdx.x == 0) inner = shared_counter = 0;
  __syncthreads();
  if (threadIdx.x % 8 == 0) {
    bool done = false;
    while (!done)
      if (atomicCAS(&inner, 0, 1) == 0) {
        __threadfence_block();
        ++shared_counter;
        __threadfence_block();
        atomicExch(&inner, 0);
        done = true;
      }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    *counter += shared_counter;
    __threadfence();
    atomicExch(lock, 0);

    cuda::atomic_ref<unsigned, cuda::thread_scope_device> next(ticket[0]), serving(ticket[1]);
    const unsigned mine = next.fetch_add(1, cuda::std::memory_order_relaxed);
    while (serving.load(cuda::std::memory_order_acquire) != mine) {
    }
    order[mine] = blockIdx.x;
    if (mine > 0) order[mine] += 1000 * (order[mine - 1] % 1000);
    serving.store(mine + 1, cuda::std::memory_order_release);
  }
}
bool locks_of_three_kinds() {
  const int blocks = 12;
  DeviceVector<int> lock(std::vector<int>{0}), counter(std::vector<int>{0}), order(blocks);
  DeviceVector<unsigned> ticket(std::vector<unsigned>{0, 0});
  locks<<<blocks, 64>>>(lock.data(), counter.data(), ticket.data(), order.data());
  const std::vector<int> got = order.host();
  std::vector<int> sorted;
  bool right = counter.host()[0] == 8 * blocks;
  for (int k = 0; k < blocks; ++k) {
    sorted.push_back(got[k] % 1000);
    right = right && got[k] / 1000 == (k ? got[k - 1] % 1000 : 0);
  }
  std::sort(sorted.begin(), sorted.end());
  for (int k = 0; k < blocks; ++k) right = right && sorted[k] == k;
  return right;
}

// A flag in global memory, by which a warp hands shared memory to another; and the last warp of a block.

__global__ void flag_between_warps(volatile int* flag, unsigned* arrived, int* out) {
  __shared__ int s[32], sums[4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 3) {
    s[lane] = lane * lane;
    __syncwarp();
    if (lane == 0) {
      __threadfence();
      flag[blockIdx.x] = 1;
    }
  } else if (warp == 0) {
    if (lane == 0)
      while (flag[blockIdx.x] == 0) {
      }
    __threadfence();
    __syncwarp();
    out[blockIdx.x * 64 + lane] = s[31 - lane];
  }
  // No barrier: the warp that comes last adds up.
  unsigned before = 0;
  if (lane == 0) {
    sums[warp] = warp + 10;
    __threadfence();
    before = atomicAdd(&arrived[blockIdx.x], 1);
    __threadfence();
  }
  before = __shfl_sync(~0u, before, 0);
  __syncwarp();
  if (before == 3) out[blockIdx.x * 64 + 32 + lane] = sums[lane % 4];
}
bool flags_between_warps() {
  DeviceVector<int> flags(std::vector<int>(3, 0)), out(3 * 64);
  DeviceVector<unsigned> arrived(std::vector<unsigned>(3, 0));
  flag_between_warps<<<3, 128>>>(flags.data(), arrived.data(), out.data());
  const std::vector<int> got = out.host();
  bool right = true;
  for (int b = 0; b < 3; ++b)
    for (int l = 0; l < 32; ++l)
      right = right && got[b * 64 + l] == (31 - l) * (31 - l) && got[b * 64 + 32 + l] == l % 4 + 10;
  return right;
}

// A barrier of the whole grid by hand, and a queue from one block to another.

__device__ void grid_barrier(unsigned* arrived, unsigned phase) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1);
    while (*static_cast<volatile unsigned*>(arrived) < phase * gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}
__global__ void relax(int* a, int* b, int n, int steps, unsigned* arrived) {
  for (int s = 0; s < steps; ++s) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
      b[i] = a[i] + a[(i + 1) % n] % 10;
    grid_barrier(arrived, s + 1);
    int* const t = a;
    a = b;
    b = t;
  }
}
bool grid_barrier_by_hand() {
  const int n = 500, steps = 5;
  std::vector<int> values = small_numbers(n);
  DeviceVector<int> a(values), b(n);
  DeviceVector<unsigned> arrived(std::vector<unsigned>{0});
  relax<<<6, 64>>>(a.data(), b.data(), n, steps, arrived.data());
  for (int s = 0; s < steps; ++s) {
    std::vector<int> next(n);
    for (int i = 0; i < n; ++i) next[i] = values[i] + values[(i + 1) % n] % 10;
    values = next;
  }
  return b.host() == values;
}

__global__ void queue(int* slots, int* head, int* tail, int items, int* out) {
  constexpr int size = 4;
  cuda::atomic_ref<int, cuda::thread_scope_device> written(*head), taken(*tail);
  const int lane = threadIdx.x;
  if (blockIdx.x == 0) {
    for (int k = 0; k < items; ++k) {
      if (lane == 0)
        while (k - taken.load(cuda::std::memory_order_acquire) >= size) {
        }
      __syncwarp();
      slots[k % size * 32 + lane] = k * 100 + lane;
      __syncwarp();
      if (lane == 0) written.store(k + 1, cuda::std::memory_order_release);
    }
  } else {
    int sum = 0;
    for (int k = 0; k < items; ++k) {
      if (lane == 0)
        while (written.load(cuda::std::memory_order_acquire) <= k) {
        }
      __syncwarp();
      sum += slots[k % size * 32 + 31 - lane];
      __syncwarp();
      if (lane == 0) taken.store(k + 1, cuda::std::memory_order_release);
    }
    out[lane] = sum;
  }
}
bool queue_between_blocks() {
  const int items = 10;
  DeviceVector<int> slots(128), ends(std::vector<int>{0, 0}), out(32);
  queue<<<2, 32>>>(slots.data(), ends.data(), ends.data() + 1, items, out.data());
  const std::vector<int> got = out.host();
  bool right = true;
  for (int l = 0; l < 32; ++l) right = right && got[l] == 100 * items * (items - 1) / 2 + items * (31 - l);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return run_programs({{"decoupled_look_back", decoupled_look_back},
                       {"named_barriers", named_barriers},
                       {"producer_and_consumer_with_barriers", producer_and_consumer_with_barriers},
                       {"pipeline_of_three_stages", pipeline_of_three_stages},
                       {"pipeline_with_roles", pipeline_with_roles},
                       {"double_buffered_tiles", double_buffered_tiles},
                       {"exchange_in_warps", exchange_in_warps},
                       {"groups_with_partial_masks", groups_with_partial_masks},
                       {"tiles_of_two_warps", tiles_of_two_warps},
                       {"threads_return_before_a_barrier", threads_return_before_a_barrier},
                       {"loop_until_all_are_done", loop_until_all_are_done},
                       {"locks_of_three_kinds", locks_of_three_kinds},
                       {"flags_between_warps", flags_between_warps},
                       {"grid_barrier_by_hand", grid_barrier_by_hand},
                       {"queue_between_blocks", queue_between_blocks}},
                      argc, argv);
}

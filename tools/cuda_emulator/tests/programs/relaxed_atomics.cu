// Atomics that need no fence, and those that have theirs: what a check of missing fences must leave alone.
#include <algorithm>

#include "program.h"

namespace {

std::vector<int> small_numbers(int n) {
  std::vector<int> values(n);
  for (int i = 0; i < n; ++i) values[i] = (i * 53 + i / 7) % 97;
  return values;
}

// Counters of many blocks and slots that they hand out; the kernel's end orders what is read afterwards.

__global__ void sort_into_bins(const int* in, int n, int* next, int* out, int capacity) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int bin = in[i] % 8;
  out[bin * capacity + atomicAdd(&next[bin], 1)] = in[i];
}
bool slots_of_bins() {
  const int n = 1000;
  const std::vector<int> values = small_numbers(n);
  DeviceVector<int> in(values), next(std::vector<int>(8, 0)), out(std::vector<int>(8 * n, -1));
  sort_into_bins<<<8, 128>>>(in.data(), n, next.data(), out.data(), n);
  std::vector<int> got;
  const std::vector<int> counts = next.host(), all = out.host();
  for (int b = 0; b < 8; ++b) got.insert(got.end(), all.begin() + b * n, all.begin() + b * n + counts[b]);
  std::vector<int> wanted = values;
  std::sort(got.begin(), got.end());
  std::sort(wanted.begin(), wanted.end());
  return got == wanted;
}

// A look at a maximum before the atomic that would raise it: whatever the look finds, the result is right.

__global__ void raise(const int* in, int n, int* highest) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  volatile int* const seen = highest;
  for (int k = 0; k < 4; ++k)
    if (seen[k] < in[i] + k) atomicMax(&highest[k], in[i] + k);
}
bool looks_before_atomics() {
  const int n = 1000;
  const std::vector<int> values = small_numbers(n);
  DeviceVector<int> in(values), highest(std::vector<int>(4, 0));
  raise<<<8, 128>>>(in.data(), n, highest.data());
  const int most = *std::max_element(values.begin(), values.end());
  return highest.host() == std::vector<int>{most, most + 1, most + 2, most + 3};
}

// The last block reads what atomics of all blocks have added up, and puts everything back for the next launch.

__global__ void total(const int* in, int n, int* sums, unsigned* ticket, int* out) {
  __shared__ bool last;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&sums[in[i] % 2], in[i]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last || threadIdx.x >= 2) return;
  __threadfence();
  out[threadIdx.x] = sums[threadIdx.x];
  sums[threadIdx.x] = 0;
}
bool last_block_of_atomic_sums() {
  const int n = 1000;
  const std::vector<int> values = small_numbers(n);
  DeviceVector<int> in(values), sums(std::vector<int>(2, 0)), out(2);
  DeviceVector<unsigned> ticket(std::vector<unsigned>{0});
  for (int launch = 0; launch < 3; ++launch)
    total<<<8, 128>>>(in.data(), n, sums.data(), ticket.data(), out.data());
  std::vector<int> wanted(2);
  for (const int v : values) wanted[v % 2] += v;
  return out.host() == wanted && sums.host() == std::vector<int>(2, 0) && ticket.host()[0] == 0;
}

// Flags from block to block. The last block has heard of each flag through a block that saw it, and clears it by a plain store.

__global__ void chain(int* data, int* flags) {
  if (threadIdx.x != 0) return;
  const int b = blockIdx.x;
  if (b > 0)
    while (atomicAdd(&flags[b - 1], 0) == 0) {
    }
  __threadfence();
  data[b] = b == 0 ? 1 : data[b - 1] * 2;
  __threadfence();
  atomicExch(&flags[b], 1);
  if (b + 1 < gridDim.x) return;
  for (int k = 0; k < b; ++k) flags[k] = 0;
}
bool chain_of_flags() {
  DeviceVector<int> data(std::vector<int>(12, 0)), flags(std::vector<int>(12, 0));
  chain<<<12, 32>>>(data.data(), flags.data());
  return data.host()[11] == 2048;
}

// A lock that threads of one block and of others take in turn.

__global__ void guarded(int* lock, int* counters) {
  for (int lane = 0; lane < 32; ++lane) {
    if (threadIdx.x % 32 != lane) continue;
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    counters[0] += 1;
    counters[1 + blockIdx.x] += counters[0] > 0;
    __threadfence();
    atomicExch(lock, 0);
  }
}
bool lock_of_threads() {
  DeviceVector<int> lock(std::vector<int>{0}), counters(std::vector<int>(4, 0));
  guarded<<<3, 64>>>(lock.data(), counters.data());
  return counters.host() == std::vector<int>{192, 64, 64, 64};
}

// Warps hand parts of a buffer in global memory on by split barriers: producers arrive, consumers wait.

__global__ void halves(const int* in, int* buffer, int* out, int rounds) {
  const int t = threadIdx.x % 64;
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x < 64) {
      if (r) asm volatile("bar.sync 2, 128;" ::: "memory");
      buffer[t] = in[r * 64 + t];
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      out[r * 64 + t] = buffer[63 - t];
      if (r + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  }
}
bool split_barriers() {
  const int rounds = 6;
  const std::vector<int> values = small_numbers(rounds * 64);
  DeviceVector<int> in(values), buffer(64), out(rounds * 64);
  halves<<<1, 128>>>(in.data(), buffer.data(), out.data(), rounds);
  const std::vector<int> got = out.host();
  for (int i = 0; i < rounds * 64; ++i)
    if (got[i] != values[i / 64 * 64 + 63 - i % 64]) return false;
  return true;
}

// Two warps of a block hand data on through a block between them, which answers at another place.

__global__ void relayed(int* data, int* there, int* back, int* out) {
  if (threadIdx.x % 32 != 0) return;
  const bool first = threadIdx.x == 0;
  if (blockIdx.x == 0 && first) {
    data[0] = 7;
    __threadfence();
    atomicExch(there, 1);
  } else if (blockIdx.x == 1 && first) {
    while (atomicAdd(there, 0) == 0) {
    }
    __threadfence();
    atomicExch(back, 1);
  } else if (blockIdx.x == 0) {
    while (atomicAdd(back, 0) == 0) {
    }
    __threadfence();
    *out = data[0] + 1;
  }
}
bool through_another_block() {
  DeviceVector<int> words(std::vector<int>(4, 0));
  relayed<<<2, 64>>>(words.data(), words.data() + 1, words.data() + 2, words.data() + 3);
  return words.host()[3] == 8;
}

const Program programs[] = {
    {"slots_of_bins", slots_of_bins},
    {"looks_before_atomics", looks_before_atomics},
    {"last_block_of_atomic_sums", last_block_of_atomic_sums},
    {"chain_of_flags", chain_of_flags},
    {"lock_of_threads", lock_of_threads},
    {"split_barriers", split_barriers},
    {"through_another_block", through_another_block},
};

}  // namespace

int main(int argc, char** argv) { return run_programs(programs, argc, argv); }

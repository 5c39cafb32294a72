#pragma once
#include <cstdint>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"
#include "ops/decays.cuh"
#include "ops/ssd_scan/ssd_scan_kernels.h"

/// Parts that all kernels of the scan share: its operands on the device, the place of a chunk, and decays.
/// The names are those of ssd_scan_chunked_cpu.cpp.
namespace nemocube::cuda::ssd {

using namespace decays;

template <class T>
struct Scan {
  Rows<T> x, dt_raw, B, C;
  const float *A_log, *D, *dt_bias;
  const std::int64_t *offsets, *first_chunk;  // [sequences + 1]
  const std::int64_t* first_segment;          // the same; null: every sequence is one segment
  std::int64_t sequences, chunks, segments;
  int heads, head_dim, groups, state, chunk_length;
  float dt_min, dt_max;

  explicit Scan(const SsdProblem& p)
      : x(rows_of<T>(p.x)),
        dt_raw(rows_of<T>(p.dt_raw)),
        B(rows_of<T>(p.B)),
        C(rows_of<T>(p.C)),
        A_log(data_of<float>(p.A_log)),
        D(data_of<float>(p.D)),
        dt_bias(data_of<float>(p.dt_bias)),
        offsets(data_of<std::int64_t>(p.sequences.offsets)),
        first_chunk(data_of<std::int64_t>(p.chunks.first)),
        first_segment(p.chunks.first_segment ? data_of<std::int64_t>(p.chunks.first_segment) : nullptr),
        sequences(p.sequences.count()),
        chunks(p.chunks.count),
        segments(p.chunks.segments),
        heads(static_cast<int>(p.options.heads)),
        head_dim(static_cast<int>(p.options.head_dim)),
        groups(static_cast<int>(p.options.groups)),
        state(static_cast<int>(p.options.state_size)),
        chunk_length(static_cast<int>(p.chunks.length)),
        dt_min(static_cast<float>(p.options.dt_min)),
        dt_max(static_cast<float>(p.options.dt_max)) {}

  __host__ __device__ int group_heads() const { return heads / groups; }
  /// Elements of one head's state.
  __host__ __device__ std::int64_t state_elements() const { return std::int64_t{head_dim} * state; }
  __device__ float rate(int head) const { return -expf(A_log[head]); }
};

/// The tokens [t0, t0 + n) of a chunk. A chunk beyond the last sequence has none: n = 0.
struct ChunkPlace {
  std::int64_t sequence, t0;
  int n;
  bool first, last;  // of its sequence
};

template <class T>
__device__ ChunkPlace place_of(const Scan<T>& scan, std::int64_t chunk) {
  if (chunk >= scan.first_chunk[scan.sequences]) return {scan.sequences - 1, 0, 0, false, false};
  const std::int64_t sequence = sequence_of(scan.first_chunk, scan.sequences, chunk);
  const std::int64_t first = scan.first_chunk[sequence];
  const std::int64_t t0 = scan.offsets[sequence] + (chunk - first) * scan.chunk_length;
  const std::int64_t rest = scan.offsets[sequence + 1] - t0;
  return {sequence, t0, static_cast<int>(rest < scan.chunk_length ? rest : scan.chunk_length), chunk == first,
          chunk + 1 == scan.first_chunk[sequence + 1]};
}

/// Time steps and decays of one head for up to `count` tokens, in shared memory. Tokens beyond the last have
/// dt = 0 and change no state.
template <int count>
struct DecaysOf {
  static constexpr int tokens = count;
  float raw[tokens];         // dt_raw + dt_bias
  float dt[tokens];          // after softplus and limits
  LongSum sum[tokens];       // a_0 + .. + a_l
  float from_start[tokens];  // e^(a_0 + .. + a_l)
  float to_end[tokens];      // e^(a_(l+1) + .. + a_(n-1))
  float whole;               // e^(a_0 + .. + a_(n-1))

  __device__ float between(int from, int to) const { return decay_between(sum[to], sum[from]); }
};
using Decays = DecaysOf<64>;

/// What a warp reads of a head's dt_raw; a thread has the tokens from count / 32 times its lane on.
template <int count>
struct RawSteps {
  static constexpr int own = count / warp_threads;
  float of[own];
};
template <int count, class T>
__device__ RawSteps<count> load_steps(const Scan<T>& scan, std::int64_t t0, int n, int head) {
  constexpr int own = RawSteps<count>::own;
  RawSteps<count> steps;
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const int l = static_cast<int>(threadIdx.x) % warp_threads * own + i;
    steps.of[i] = l < n ? to_float(scan.dt_raw.row(t0 + l)[head]) : 0;
  }
  return steps;
}

/// One warp fills `d` for n tokens.
template <int count, class T>
__device__ void warp_set_decays(DecaysOf<count>& d, const RawSteps<count>& steps, const Scan<T>& scan, int n,
                                int head) {
  constexpr int own = RawSteps<count>::own;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const float rate = scan.rate(head), bias = scan.dt_bias[head];
  LongSum sums[own] = {};
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const int l = lane * own + i;
    float v = 0, dt = 0;
    if (l < n) {
      v = steps.of[i] + bias;
      const float soft = softplus(v);
      const float above = soft < scan.dt_min ? scan.dt_min : soft;
      dt = above > scan.dt_max ? scan.dt_max : above;
      sums[i] = exact_product(dt, rate);
    }
    if (i > 0) sums[i] = sums[i - 1] + sums[i];
    d.raw[l] = v;
    d.dt[l] = dt;
  }
  const LongSum through = running_sum(sums[own - 1]);
  LongSum before{__shfl_up_sync(whole_warp, through.high, 1), __shfl_up_sync(whole_warp, through.low, 1)};
  if (lane == 0) before = {};
  const LongSum end{__shfl_sync(whole_warp, through.high, warp_threads - 1),
                    __shfl_sync(whole_warp, through.low, warp_threads - 1)};
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const int l = lane * own + i;
    const LongSum sum = before + sums[i];
    d.sum[l] = sum;
    d.from_start[l] = expf(sum.high);
    d.to_end[l] = expf(difference(end, sum));
  }
  if (lane == 0) d.whole = expf(end.high);
}
/// One warp fills `d` for the n tokens from t0 on.
template <int count, class T>
__device__ void warp_load_decays(DecaysOf<count>& d, const Scan<T>& scan, std::int64_t t0, int n, int head) {
  warp_set_decays(d, load_steps<count>(scan, t0, n, head), scan, n, head);
}

/// The kernels on tensor cores, for what ssd_on_tensor_cores() says.
void tensor_core_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void tensor_core_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts);

}  // namespace nemocube::cuda::ssd

#include "core/cuda/device.cuh"
#include "core/cuda/elementwise.cuh"
#include "core/cuda/values.cuh"
#include "core/cuda/warp.cuh"
#include "ops/causal_conv1d/causal_conv1d_kernels.h"
#include "ops/math.cuh"
#include "ops/reduce_kernels.h"
#include "ops/segments.h"

// A warp has a run of rows of 32 * N columns; a thread has N neighbouring columns, walks over the rows and
// keeps the inputs of the last taps in registers. This is for four taps, the number of all Nemotron-H models.
// Other numbers of taps have kernels of their own at the end, which read every input once for each tap.
namespace nemocube::cuda {
namespace {

constexpr int taps = 4;
/// Rows whose loads are under way together. As many as a thread keeps: after so many rows, all that it keeps
/// is new, and nothing moves from register to register.
constexpr int rows_at_once = taps - 1;

template <class T>
struct Conv {
  Rows<T> x;
  Parameter<T> weight, bias;  // [C, K] and [C]
  Rows<float> state;          // [sequences, K - 1, C], may be null
  const std::int64_t* offsets;
  std::int64_t sequences, rows, channels;
  int taps;
};

template <class T>
Conv<T> conv_of(const ConvInputs& in) {
  require(in.weight.cols() < (std::int64_t{1} << 30),
          "causal_conv1d on cuda: want fewer than 2^30 taps, got ", in.weight.cols());
  return {rows_of<T>(in.x),
          parameter_of<T>(in.weight),
          parameter_of<T>(in.bias),
          rows_of<float>(in.initial_state),
          data_of<std::int64_t>(in.sequences.offsets),
          in.sequences.count(),
          in.x.rows(),
          in.x.cols(),
          static_cast<int>(in.weight.cols())};
}

ConvInputs with_contiguous_weight(const ConvInputs& in) {
  ConvInputs same = in;
  same.weight = in.weight.as_contiguous();
  return same;
}

/// The sequence that holds a row.
struct RowSequence {
  std::int64_t sequence, begin, end;
};

/// For a whole warp.
__device__ RowSequence sequence_of(const std::int64_t* offsets, std::int64_t sequences, std::int64_t row) {
  const int lane = threadIdx.x % warp_threads;
  std::int64_t first = 0, count = sequences;  // candidates: the last offset <= row is that of one of them
  while (count > 1) {
    const std::int64_t step = (count + warp_threads - 1) / warp_threads, own = lane * step;
    const unsigned not_after = __ballot_sync(whole_warp, own < count && offsets[first + own] <= row);
    const std::int64_t before = (__popc(not_after) - 1) * step;
    first += before;
    count = step < count - before ? step : count - before;
  }
  return {first, offsets[first], offsets[first + 1]};
}

/// The next sequence that holds rows, and the one before.
__device__ RowSequence next_sequence(const std::int64_t* offsets, RowSequence place) {
  const std::int64_t begin = place.end;
  while (place.end == begin) place.end = offsets[++place.sequence + 1];
  return {place.sequence, begin, place.end};
}
__device__ RowSequence previous_sequence(const std::int64_t* offsets, RowSequence place) {
  const std::int64_t end = place.begin;
  while (place.begin == end) place.begin = offsets[--place.sequence];
  return {place.sequence, place.begin, end};
}

/// A row of the state that is left of the sequence: row < place.begin.
template <bool aligned, class T, int N>
__device__ void read_state(const Conv<T>& t, const RowSequence& place, std::int64_t row, std::int64_t c,
                           float (&v)[N]) {
  if (t.state) {
    const std::int64_t kept = t.taps - 1, state_row = place.sequence * kept + kept + row - place.begin;
    read_values<aligned>(t.state.row(state_row) + c, t.channels - c, v);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = 0;
  }
}

/// The input of a tap at `row`, which may lie left of the sequence.
template <bool aligned, class T, int N>
__device__ void read_input(const Conv<T>& t, const RowSequence& place, std::int64_t row, std::int64_t c,
                           float (&v)[N]) {
  if (row >= place.begin)
    read_values<aligned>(t.x.row(row) + c, t.channels - c, v);
  else
    read_state<aligned>(t, place, row, c, v);
}

/// The taps of N columns: [N][taps].
template <bool aligned, class T, int N>
__device__ void read_taps(const Conv<T>& t, std::int64_t c, float (&w)[N][taps]) {
  float all[N * taps];
  t.weight.template read<aligned>(c * taps, (t.channels - c) * taps, all);
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int k = 0; k < taps; ++k) w[i][k] = all[i * taps + k];
}

/// Columns of N that a thread may touch. `aligned`: rows are aligned and have whole packs only.
template <bool aligned, int N>
__device__ std::int64_t columns_from(std::int64_t c, std::int64_t channels) {
  return aligned ? N : channels - c;
}

template <int N>
__device__ void copy(float (&to)[N], const float (&from)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i];
}

constexpr int forward_threads = 128;
/// That a multiprocessor shall hold. Code of compute 8.0 would spill registers for a fourth.
#if __CUDA_ARCH__ >= 900
constexpr int forward_blocks = 4;
#else
constexpr int forward_blocks = 3;
#endif
constexpr int forward_rows = 48;  // of a warp

template <class T, bool aligned>
__global__ void __launch_bounds__(forward_threads, forward_blocks)
    forward_kernel(const Conv<T> t, Rows<T> y, std::int64_t column_groups) {
  constexpr int N = whole_pack<T>;
  using Elements = Pack<T, N>;
  const int warp = threadIdx.x / warp_threads, lane = threadIdx.x % warp_threads;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (forward_threads / warp_threads) + warp;
  const std::int64_t first = item / column_groups * forward_rows;
  if (first >= t.rows) return;
  const int height = static_cast<int>(forward_rows < t.rows - first ? forward_rows : t.rows - first);
  RowSequence place = sequence_of(t.offsets, t.sequences, first);
  const std::int64_t c = (item % column_groups * warp_threads + lane) * N;
  if (c >= t.channels) return;
  const std::int64_t count = columns_from<aligned, N>(c, t.channels);

  float w[N][taps], bias[N], before[taps - 1][N];  // before: the three rows before a row
  read_taps<aligned>(t, c, w);
  t.bias.template read<aligned>(c, t.channels - c, bias);
  // Rows count from `first`. `change`: where the next sequence begins.
  int change = 0;
  const auto begin_sequence = [&](int row) {
    change = static_cast<int>(place.end - first < height ? place.end - first : height);
#pragma unroll
    for (int k = 0; k < taps - 1; ++k)
      read_input<aligned>(t, place, first + row - taps + 1 + k, c, before[k]);
  };
  const T* x = t.x.row(first) + c;
  T* out_row = y.row(first) + c;
  Elements packs[rows_at_once];
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r)
    if (r < height) packs[r] = Elements::template load<aligned>(x + r * t.x.stride, count);
  begin_sequence(0);
  for (int start = 0; start < height; start += rows_at_once) {
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r, x += t.x.stride, out_row += y.stride) {
      const int row = start + r;
      if (row >= height) break;
      if (row == change) {
        place = next_sequence(t.offsets, place);
        begin_sequence(row);
      }
      float v[N], out[N];
      packs[r].read(v);
      if (row + rows_at_once < height)
        packs[r] = Elements::template load<aligned>(x + rows_at_once * t.x.stride, count);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float sum = bias[i];
#pragma unroll
        for (int k = 0; k < taps - 1; ++k) sum += w[i][k] * before[k][i];
        sum += w[i][taps - 1] * v[i];
        out[i] = sum * sigmoid(sum);
      }
      Elements::of(out).template store<aligned>(out_row, count);
#pragma unroll
      for (int k = 0; k + 1 < taps - 1; ++k) copy(before[k], before[k + 1]);
      copy(before[taps - 2], v);
    }
  }
}

// Backward: a block has 512 rows, each of its warps 64 of them, from the last to the first: dx of a row needs
// du of the three rows after it. These may belong to the next warp, which then forms them, too. The sums of
// the block's warps for dweight and dbias are added in their order, and sum_segments adds those of the
// blocks.
template <class T>
struct Gradients {
  Rows<T> dx, dy;              // dx may be null
  Rows<float> dweight, dbias;  // [segments, C * K] and [segments, C] of f32; may be null
};

constexpr int backward_warps = 8;
constexpr int backward_rows = 64;  // of a warp
constexpr int backward_columns = 4;
/// That a multiprocessor shall hold.
template <class T>
constexpr int backward_blocks = sizeof(T) == 2 ? 2 : 1;

template <class T, bool aligned>
__global__ void __launch_bounds__(backward_warps* warp_threads, backward_blocks<T>)
    backward_kernel(const Conv<T> t, const Gradients<T> d, unsigned column_groups) {
  constexpr int N = backward_columns;
  using Elements = Pack<T, N>;
  __shared__ float of_warps[backward_warps][N * (taps + 1)][warp_threads];
  const int warp = threadIdx.x / warp_threads, lane = threadIdx.x % warp_threads;
  const std::int64_t segment = blockIdx.x / column_groups;
  const std::int64_t first = (segment * backward_warps + warp) * backward_rows;
  const int height = static_cast<int>(backward_rows < t.rows - first ? backward_rows : t.rows - first);
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x % column_groups) * warp_threads + lane) * N;
  const std::int64_t count = t.channels - c;

  float dw[N][taps] = {}, db[N] = {};
  if (height > 0) {
    RowSequence place = sequence_of(t.offsets, t.sequences, first + height - 1);
    if (count > 0) {
      const std::int64_t own = columns_from<aligned, N>(c, t.channels);
      float w[N][taps], bias[N];
      read_taps<aligned>(t, c, w);
      t.bias.template read<aligned>(c, count, bias);
      // Rows count from `first`.
      int start = height - 1;
      if (d.dx) {
        const std::int64_t after = place.end - first - height;
        start += static_cast<int>(after < taps - 1 ? after : taps - 1);
      }
      // v: the inputs of the two rows before a row, and its own. after: du of the three rows after it, 0
      // beyond the sequence, which begins at `begin` or before the first input that the warp needs.
      float v[taps - 1][N], after[taps - 1][N];
      int begin = 0;
      const auto begin_sequence = [&](int row) {
        begin = static_cast<int>(place.begin - first > -taps ? place.begin - first : -taps);
#pragma unroll
        for (int k = 0; k < taps - 1; ++k) {
          read_input<aligned>(t, place, first + row - taps + 2 + k, c, v[k]);
#pragma unroll
          for (int i = 0; i < N; ++i) after[k][i] = 0;
        }
      };
      const int first_input = static_cast<int>(first < taps - 1 ? -first : 1 - taps);
      const T* dy_row = d.dy.row(first + start) + c;
      const T* x_row = t.x.row(first + start - taps + 1) + c;  // of the oldest input
      T* dx_row = d.dx ? d.dx.row(first + start) + c : nullptr;
      Elements oldest[rows_at_once], dy[rows_at_once];
      const auto load = [&](int r, int row, std::int64_t ahead) {
        dy[r] = Elements::template load<aligned>(dy_row - ahead * d.dy.stride, own);
        if (row - taps + 1 >= first_input)
          oldest[r] = Elements::template load<aligned>(x_row - ahead * t.x.stride, own);
      };
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
        if (start - r >= 0) load(r, start - r, r);
      begin_sequence(start);
      for (; start >= 0; start -= rows_at_once) {
#pragma unroll
        for (int r = 0; r < rows_at_once;
             ++r, dx_row -= d.dx.stride, dy_row -= d.dy.stride, x_row -= t.x.stride) {
          const int row = start - r;
          if (row < 0) break;
          if (row < begin) {
            place = previous_sequence(t.offsets, place);
            begin_sequence(row);
          }
          float u[N], du[N], dx[N];
          if (row - taps + 1 >= begin)
            oldest[r].read(u);
          else
            read_state<aligned>(t, place, first + row - taps + 1, c, u);
          dy[r].read(du);
          if (row >= rows_at_once) load(r, row - rows_at_once, rows_at_once);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            float sum = bias[i] + w[i][0] * u[i];
#pragma unroll
            for (int k = 1; k < taps; ++k) sum += w[i][k] * v[k - 1][i];
            du[i] *= silu_slope(sum, sigmoid(sum));
          }
          if (row < height) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
              dw[i][0] += du[i] * u[i];
#pragma unroll
              for (int k = 1; k < taps; ++k) dw[i][k] += du[i] * v[k - 1][i];
              db[i] += du[i];
              dx[i] = w[i][taps - 1] * du[i];
#pragma unroll
              for (int k = 0; k < taps - 1; ++k) dx[i] += w[i][taps - 2 - k] * after[k][i];
            }
            if (d.dx) Elements::of(dx).template store<aligned>(dx_row, own);
          }
#pragma unroll
          for (int k = taps - 2; k > 0; --k) {
            copy(after[k], after[k - 1]);
            copy(v[k], v[k - 1]);
          }
          copy(after[0], du);
          copy(v[0], u);
        }
      }
    }
  }
  if (!d.dweight && !d.dbias) return;

#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int k = 0; k < taps; ++k) of_warps[warp][i * taps + k][lane] = dw[i][k];
    of_warps[warp][N * taps + i][lane] = db[i];
  }
  __syncthreads();
  // The first N warps have one of the N columns each, the next one the bias.
  if (warp > N || count <= 0) return;
  float sums[taps];
  static_assert(taps == N);
#pragma unroll
  for (int k = 0; k < taps; ++k) {
    sums[k] = 0;
    for (int other = 0; other < backward_warps; ++other) sums[k] += of_warps[other][warp * taps + k][lane];
  }
  if (warp == N) {
    if (d.dbias) write_values<true>(d.dbias.row(segment) + c, count, sums);
  } else if (warp < count && d.dweight) {
    write_values<true>(d.dweight.row(segment) + (c + warp) * taps, taps, sums);
  }
}

// Any number of taps: a warp has 32 columns of one row, or of one segment.
constexpr int any_threads = 128;

struct WarpGrid {
  std::int64_t items, column_groups, channels;
};
inline WarpGrid warp_grid(std::int64_t items, std::int64_t channels) {
  return {items, (channels + warp_threads - 1) / warp_threads, channels};
}
inline unsigned blocks_of(const WarpGrid& grid) {
  return blocks_for(grid.items * grid.column_groups, any_threads / warp_threads);
}
/// Calls fn(item, column, active) for the item of the warp and the column of the thread.
template <class Fn>
__device__ void for_own_column(const WarpGrid& grid, Fn&& fn) {
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * (any_threads / warp_threads) + threadIdx.x / warp_threads;
  if (warp >= grid.items * grid.column_groups) return;
  const std::int64_t c = warp % grid.column_groups * warp_threads + threadIdx.x % warp_threads;
  fn(warp / grid.column_groups, c, c < grid.channels);
}

template <class T>
__device__ float input_at(const Conv<T>& t, const RowSequence& place, std::int64_t row, std::int64_t c) {
  float v[1];
  read_input<false>(t, place, row, c, v);
  return v[0];
}

template <class T>
__device__ float convolved(const Conv<T>& t, const RowSequence& place, std::int64_t row, std::int64_t c) {
  float sum = t.bias[c];
  for (int k = 0; k < t.taps; ++k)
    sum += t.weight[c * t.taps + k] * input_at(t, place, row - t.taps + 1 + k, c);
  return sum;
}

template <class T>
__global__ void __launch_bounds__(any_threads) forward_any_kernel(WarpGrid grid, const Conv<T> t, Rows<T> y) {
  for_own_column(grid, [&](std::int64_t row, std::int64_t c, bool active) {
    const RowSequence place = sequence_of(t.offsets, t.sequences, row);
    if (!active) return;
    const float sum = convolved(t, place, row, c);
    y.row(row)[c] = rounded<T>(sum * sigmoid(sum));
  });
}

/// du = dy silu'(c)
template <class T>
__global__ void __launch_bounds__(any_threads)
    du_any_kernel(WarpGrid grid, const Conv<T> t, Rows<float> du, Rows<T> dy) {
  for_own_column(grid, [&](std::int64_t row, std::int64_t c, bool active) {
    const RowSequence place = sequence_of(t.offsets, t.sequences, row);
    if (!active) return;
    const float sum = convolved(t, place, row, c);
    du.row(row)[c] = to_float(dy.row(row)[c]) * silu_slope(sum, sigmoid(sum));
  });
}

template <class T>
__global__ void __launch_bounds__(any_threads)
    dx_any_kernel(WarpGrid grid, const Conv<T> t, Rows<T> dx, Rows<float> du) {
  for_own_column(grid, [&](std::int64_t row, std::int64_t c, bool active) {
    const RowSequence place = sequence_of(t.offsets, t.sequences, row);
    if (!active) return;
    float sum = 0;
    for (int ahead = 0; ahead < t.taps && row + ahead < place.end; ++ahead)
      sum += t.weight[c * t.taps + t.taps - 1 - ahead] * du.row(row + ahead)[c];
    dx.row(row)[c] = rounded<T>(sum);
  });
}

// An item is a segment and a tap; the tap after the last one is the bias.
template <class T>
__global__ void __launch_bounds__(any_threads)
    sums_any_kernel(WarpGrid grid, const Conv<T> t, Rows<float> dweight, Rows<float> dbias, Rows<float> du) {
  for_own_column(grid, [&](std::int64_t item, std::int64_t c, bool active) {
    const std::int64_t segment = item / (t.taps + 1), first = segment * segment_rows;
    const std::int64_t stop = first + segment_rows < t.rows ? first + segment_rows : t.rows;
    const int tap = static_cast<int>(item % (t.taps + 1));
    RowSequence place = sequence_of(t.offsets, t.sequences, first);
    if (!active || !(tap < t.taps ? dweight : dbias)) return;
    float sum = 0;
    for (std::int64_t row = first; row < stop; ++row) {
      if (row == place.end) place = next_sequence(t.offsets, place);
      const float u = du.row(row)[c];
      sum += tap < t.taps ? u * input_at(t, place, row - t.taps + 1 + tap, c) : u;
    }
    if (tap < t.taps)
      dweight.row(segment)[c * t.taps + tap] = sum;
    else
      dbias.row(segment)[c] = sum;
  });
}

bool aligned_inputs(const ConvInputs& in) {
  // Rows of the state are one after the other, those of the weight too.
  return rows_aligned(in.x, in.weight.reshape({-1}), in.bias, in.initial_state);
}

void forward(const Tensor& y, const ConvInputs& any_in) {
  const ConvInputs in = with_contiguous_weight(any_in);
  visit_storage("causal_conv1d_silu", in.x.dtype(), [&]<class T>(TypeTag<T>) {
    if (in.x.numel() == 0) return;
    const Conv<T> t = conv_of<T>(in);
    if (t.taps != taps) {
      const WarpGrid grid = warp_grid(t.rows, t.channels);
      launch("causal_conv1d forward", forward_any_kernel<T>, blocks_of(grid), any_threads, grid, t,
             rows_of<T>(y));
      return;
    }
    constexpr std::int64_t columns = warp_threads * whole_pack<T>;
    const std::int64_t column_groups = (t.channels + columns - 1) / columns,
                       tiles = (t.rows + forward_rows - 1) / forward_rows;
    launch("causal_conv1d forward",
           t.channels % whole_pack<T> == 0 && aligned_inputs(in) && rows_aligned(y)
               ? forward_kernel<T, true>
               : forward_kernel<T, false>,
           blocks_for(tiles * column_groups, forward_threads / warp_threads), forward_threads, t,
           rows_of<T>(y), column_groups);
  });
}

// The oldest row of the state of sequence i is row i * kept.
template <class T, int N>
__global__ void final_state_kernel(RowBlocks grid, float* state, const Conv<T> t) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    const std::int64_t kept = t.taps - 1, sequence = r / kept;
    const RowSequence place{sequence, t.offsets[sequence], t.offsets[sequence + 1]};
    // A sequence that is shorter keeps the end of its initial state.
    float v[N];
    read_input<true>(t, place, place.end - kept + r % kept, c, v);
    Pack<float, N>::of(v).store(state + r * t.channels + c, count);
  });
}

void final_state(const Tensor& state, const ConvInputs& in) {
  visit_storage("causal_conv1d_silu", in.x.dtype(), [&]<class T>(TypeTag<T>) {
    if (state.numel() == 0) return;
    const auto with_packs_of = [&](auto columns) {
      launch_elementwise<columns>("causal_conv1d final state", final_state_kernel<T, columns>, state.rows(),
                                  state.cols(), data_of<float>(state), conv_of<T>(in));
    };
    if (rows_aligned(in.x, in.initial_state, state))
      with_packs_of(std::integral_constant<int, 4>());
    else
      with_packs_of(std::integral_constant<int, 1>());
  });
}

/// Partial sums for `sum`, [segments, elements of sum], in rows of whole packs; undefined where no sum is
/// wanted.
Tensor partial_sums(const Output& sum, std::int64_t segments) {
  if (!sum.to) return {};
  const std::int64_t cols = sum.to.numel();
  return Tensor::empty({segments, (cols + 3) / 4 * 4}, DType::f32, sum.to.device()).narrow(-1, 0, cols);
}

void backward(const Tensor& dx, const Output& dweight, const Output& dbias, const Tensor& dy,
              const ConvInputs& any_in) {
  const ConvInputs in = with_contiguous_weight(any_in);
  const bool own_taps = in.weight.cols() == taps;
  const std::int64_t of_segment = own_taps ? backward_warps * backward_rows : segment_rows;
  const std::int64_t segments = (in.x.rows() + of_segment - 1) / of_segment;
  const Tensor dw = partial_sums(dweight, segments), db = partial_sums(dbias, segments);
  visit_storage("causal_conv1d_silu", in.x.dtype(), [&]<class T>(TypeTag<T>) {
    if (in.x.numel() == 0) return;
    const Conv<T> t = conv_of<T>(in);
    if (own_taps) {
      const unsigned column_groups = blocks_for(t.channels, warp_threads * backward_columns);
      launch("causal_conv1d backward",
             t.channels % backward_columns == 0 && aligned_inputs(in) && rows_aligned(dx, dy)
                 ? backward_kernel<T, true>
                 : backward_kernel<T, false>,
             blocks_for(segments * column_groups, 1), backward_warps * warp_threads, t,
             Gradients<T>{rows_of<T>(dx), rows_of<T>(dy), rows_of<float>(dw), rows_of<float>(db)},
             column_groups);
      return;
    }
    const Tensor du = Tensor::empty(dy.shape(), DType::f32, dy.device());
    const WarpGrid grid = warp_grid(t.rows, t.channels);
    launch("causal_conv1d backward, du", du_any_kernel<T>, blocks_of(grid), any_threads, grid, t,
           rows_of<float>(du), rows_of<T>(dy));
    if (dx)
      launch("causal_conv1d backward, dx", dx_any_kernel<T>, blocks_of(grid), any_threads, grid, t,
             rows_of<T>(dx), rows_of<float>(du));
    if (!dw && !db) return;
    const WarpGrid sums = warp_grid(segments * (t.taps + 1), t.channels);
    launch("causal_conv1d backward, sums", sums_any_kernel<T>, blocks_of(sums), any_threads, sums, t,
           rows_of<float>(dw), rows_of<float>(db), rows_of<float>(du));
  });
  SegmentSums of_blocks;
  if (dw) of_blocks.push_back({dweight, dw});
  if (db) of_blocks.push_back({dbias, db});
  sum_segments_kernel.on_cuda(of_blocks);
}

const Provide provided[] = {{causal_conv1d_forward, forward},
                            {causal_conv1d_final_state, final_state},
                            {causal_conv1d_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

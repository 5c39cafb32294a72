#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "core/cuda/device.cuh"
#include "core/cuda/lanes.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"
#include "ops/permute/permute_kernels.h"

namespace nemocube::cuda {
namespace {

// Order of the rows: a counting sort. Choices in the order (token, choice) are cut into segments, one for
// each block, and a segment into parts, one for each warp. The rows of an expert begin after those of all
// experts before it, of all segments before, and of the warps before; a warp takes its part 32 choices at a
// time. A single segment counts for itself. Of several, a kernel has counted before.
constexpr int order_threads = 1024, order_warps = order_threads / warp_threads;
constexpr int experts_at_once = 512;  // whose counters fit shared memory: 64 KiB
constexpr std::int64_t whole_segment = 32 * order_threads;
constexpr std::int64_t most_segments = 128;  // every block adds up the counts of all

struct OrderTensors {
  const int* experts = nullptr;  // [choices]
  const int* table = nullptr;    // [segments, here]: choices of each expert; null: a single segment
  std::int64_t* offsets = nullptr;
  int *source = nullptr, *slot = nullptr;  // null: offsets only
  std::int64_t choices = 0, segment = 0, rows = 0;
  int segments = 1, choices_of_token = 0;
  int begin = 0, here = 0;  // the experts [begin, begin + here)
};

/// The choices of a warp among those of its block's segment.
__device__ Range own_choices(const OrderTensors& t) {
  const std::int64_t part = t.segment / order_warps;
  const std::int64_t begin = blockIdx.x * t.segment + threadIdx.x / warp_threads * part;
  return {begin, min(begin + part, t.choices)};
}

/// Calls fn(choice, expert, peers) with all threads of a warp for its choices in order. `expert` counts from
/// the first of the `count` experts from t.begin + first on, and is -1 for another expert or none; `peers`:
/// the threads with the same one.
template <class Fn>
__device__ void for_own_choices(const OrderTensors& t, int first, int count, Fn&& fn) {
  const Range own = own_choices(t);
  for (std::int64_t begin = own.begin; begin < own.end; begin += warp_threads) {
    const std::int64_t i = begin + threadIdx.x % warp_threads;
    int e = i < own.end ? t.experts[i] - t.begin - first : -1;
    if (e < 0 || e >= count) e = -1;
    fn(i, e, __match_any_sync(whole_warp, e));
    __syncwarp();
  }
}

__global__ void __launch_bounds__(order_threads) count_choices_kernel(const OrderTensors t, int* table) {
  __shared__ int counts[experts_at_once];
  const std::int64_t begin = blockIdx.x * t.segment, end = min(begin + t.segment, t.choices);
  for (int first = 0; first < t.here; first += experts_at_once) {
    const int count = min(experts_at_once, t.here - first);
    if (threadIdx.x < count) counts[threadIdx.x] = 0;
    __syncthreads();
    for (std::int64_t i = begin + threadIdx.x; i < end; i += order_threads)
      if (const int e = t.experts[i] - t.begin - first; e >= 0 && e < count) atomicAdd(&counts[e], 1);
    __syncthreads();
    if (threadIdx.x < count)
      table[blockIdx.x * static_cast<std::int64_t>(t.here) + first + threadIdx.x] = counts[threadIdx.x];
  }
}

__global__ void __launch_bounds__(order_threads) order_kernel(const OrderTensors t) {
  static_assert(experts_at_once <= order_threads);
  using Scan = cub::BlockScan<int, order_threads>;
  __shared__ typename Scan::TempStorage storage;
  extern __shared__ int next[];  // [order_warps, experts at once]: the next row of each warp
  const int lane = threadIdx.x % warp_threads;
  const unsigned before_lane = (1U << lane) - 1;
  int carry = 0, first = 0;  // rows of the experts before `first`
  do {
    const int count = min(experts_at_once, t.here - first);
    int* const own = next + threadIdx.x / warp_threads * count;
    for (int i = threadIdx.x; i < order_warps * count; i += order_threads) next[i] = 0;
    __syncthreads();
    for_own_choices(t, first, count, [&](std::int64_t, int e, unsigned peers) {
      if (e >= 0 && (peers & before_lane) == 0) own[e] += __popc(peers);
    });
    __syncthreads();

    // Thread e has expert e.
    int of_expert = 0, of_segments_before = 0;
    if (threadIdx.x < count) {
      if (t.table) {
        const int* of_segment = t.table + first + threadIdx.x;
        for (int s = 0; s < t.segments; ++s, of_segment += t.here) {
          if (s == blockIdx.x) of_segments_before = of_expert;
          of_expert += *of_segment;
        }
      } else {
        for (int w = 0; w < order_warps; ++w) of_expert += next[w * count + threadIdx.x];
      }
    }
    int start = 0, of_all = 0;
    Scan(storage).ExclusiveSum(of_expert, start, of_all);
    if (threadIdx.x < count) {
      start += carry;
      if (blockIdx.x == 0) t.offsets[first + threadIdx.x] = start;
      int row = start + of_segments_before;
      for (int w = 0; w < order_warps; ++w) {
        int& place = next[w * count + threadIdx.x];
        const int rows = place;
        place = row;
        row += rows;
      }
    }
    carry += of_all;
    __syncthreads();

    if (t.slot)
      for_own_choices(t, first, count, [&](std::int64_t i, int e, unsigned peers) {
        const int row = e >= 0 ? own[e] + __popc(peers & before_lane) : -1;
        __syncwarp();
        if (e >= 0) {
          if ((peers & before_lane) == 0) own[e] += __popc(peers);
          const bool fits = row < t.rows;
          if (fits) t.source[row] = static_cast<int>(static_cast<unsigned>(i) / t.choices_of_token);
          t.slot[i] = fits ? row : -1;
        } else if (first == 0 && i < t.choices) {
          const int expert = t.experts[i] - t.begin;
          if (expert < 0 || expert >= t.here) t.slot[i] = -1;
        }
      });
    first += experts_at_once;
    __syncthreads();
  } while (first < t.here);
  if (blockIdx.x == 0 && threadIdx.x == 0) t.offsets[t.here] = carry;
  if (t.source)
    for (std::int64_t r = carry + std::int64_t{blockIdx.x} * order_threads + threadIdx.x; r < t.rows;
         r += std::int64_t{gridDim.x} * order_threads)
      t.source[r] = -1;
}

void order(const Tensor& offsets, const Tensor& source, const Tensor& slot, const Tensor& any_experts,
           Range here) {
  const Tensor experts = any_experts.as_contiguous();
  OrderTensors t{.experts = data_of<std::int32_t>(experts),
                 .offsets = data_of<std::int64_t>(offsets),
                 .source = source.defined() ? data_of<std::int32_t>(source) : nullptr,
                 .slot = slot.defined() ? data_of<std::int32_t>(slot) : nullptr,
                 .choices = experts.numel(),
                 .rows = source.defined() ? source.numel() : 0,
                 .choices_of_token = static_cast<int>(experts.cols()),
                 .begin = static_cast<int>(here.begin),
                 .here = static_cast<int>(here.size())};
  const auto rounded_up = [](std::int64_t n) {
    return (n + order_threads - 1) / order_threads * order_threads;
  };
  Tensor table;
  if (t.choices <= whole_segment) {
    t.segment = rounded_up(t.choices);
  } else {
    t.segment = std::max<std::int64_t>(2 * order_threads,
                                       rounded_up((t.choices + most_segments - 1) / most_segments));
    t.segments = static_cast<int>(blocks_for(t.choices, t.segment));
    table = Tensor::empty({t.segments, here.size()}, DType::i32, experts.device());
    launch("permute: choices of each expert", count_choices_kernel, t.segments, order_threads, t,
           data_of<std::int32_t>(table));
    t.table = data_of<std::int32_t>(table);
  }
  const auto shared = static_cast<std::size_t>(std::min<std::int64_t>(here.size(), experts_at_once)) *
                      order_warps * sizeof(int);
  launch_shared("permute: order of rows", order_kernel, t.slot ? t.segments : 1, order_threads, shared, t);
}

void offsets_of_experts(const Tensor& offsets, const Tensor& experts, std::int64_t, Range here) {
  order(offsets, {}, {}, experts, here);
}

void order_by_expert(const Permutation& p, const Tensor& experts, std::int64_t, Range here) {
  order(p.offsets, p.source, p.slot, experts, here);
}

// Merging: cell (e, s) has the rows of expert e and source s. A block finds where each cell begins among the
// rows that come in and among those that go out; then each row looks for its cell.
struct MergeTensors {
  Rows<std::int64_t> ends;  // [sources, E]
  std::int64_t* offsets;
  int *source, *slot;
  int *from, *to;  // [cells]
  int* of_source;  // [sources]: the first row
  int sources, begin, here, cells, rows;
  __device__ int end(int s, int e) const { return e < 0 ? 0 : static_cast<int>(ends.row(s)[e]); }
};

constexpr int merge_threads = 512;

/// Adds up value(i) for i in [0, count) with all threads of the block: calls put(i, the sum of the values
/// before i). Returns the sum of all.
template <class Value, class Put>
__device__ int scan(int count, Value&& value, Put&& put) {
  using Scan = cub::BlockScan<int, merge_threads>;
  __shared__ typename Scan::TempStorage storage;
  int before = 0;
  for (int first = 0; first < count; first += merge_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    int start = 0, sum = 0;
    Scan(storage).ExclusiveSum(i < count ? value(i) : 0, start, sum);
    if (i < count) put(i, before + start);
    before += sum;
    __syncthreads();
  }
  return before;
}

__global__ void __launch_bounds__(merge_threads) merge_cells_kernel(const MergeTensors t) {
  const int last = t.begin + t.here - 1;
  scan(
      t.sources, [&](int s) { return t.end(s, last) - t.end(s, t.begin - 1); },
      [&](int s, int before) { t.of_source[s] = before; });
  const int all = scan(
      t.cells,
      [&](int cell) {
        const int s = cell % t.sources, e = t.begin + cell / t.sources;
        return t.end(s, e) - t.end(s, e - 1);
      },
      [&](int cell, int before) {
        const int s = cell % t.sources, e = t.begin + cell / t.sources;
        t.from[cell] = t.of_source[s] + t.end(s, e - 1) - t.end(s, t.begin - 1);
        t.to[cell] = before;
        if (s == 0) t.offsets[e - t.begin] = before;
      });
  const int first_beyond = t.cells > 0 ? t.here : 0;
  for (int e = first_beyond + threadIdx.x; e <= t.here; e += merge_threads) t.offsets[e] = all;
}

__global__ void __launch_bounds__(merge_threads) merge_rows_kernel(const MergeTensors t) {
  const std::int64_t place = std::int64_t{blockIdx.x} * merge_threads + threadIdx.x;
  if (place >= t.rows) return;
  const int row = static_cast<int>(place);
  if (row >= t.offsets[t.here]) {
    t.source[row] = t.slot[row] = -1;
    return;
  }
  int low = 0, high = t.cells;  // the last cell that begins at this row or before
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (t.to[middle] <= row ? low : high) = middle;
  }
  const int from = t.from[low] + row - t.to[low];
  if (from >= t.rows) return;
  t.source[row] = from;
  t.slot[from] = row;
}

void merge(const Permutation& p, const Tensor& ends, Range here) {
  const std::int64_t sources = ends.dim(0), cells = sources * here.size();
  require(cells < (std::int64_t{1} << 30),
          "merge_by_expert on cuda: want fewer than 2^30 experts of sources, got ", cells);
  const Tensor numbers = Tensor::empty({2 * cells + sources}, DType::i32, ends.device());
  int* const scratch = data_of<std::int32_t>(numbers);
  const MergeTensors t{.ends = rows_of<std::int64_t>(ends),
                       .offsets = data_of<std::int64_t>(p.offsets),
                       .source = data_of<std::int32_t>(p.source),
                       .slot = data_of<std::int32_t>(p.slot),
                       .from = scratch,
                       .to = scratch + cells,
                       .of_source = scratch + 2 * cells,
                       .sources = static_cast<int>(sources),
                       .begin = static_cast<int>(here.begin),
                       .here = static_cast<int>(here.size()),
                       .cells = static_cast<int>(cells),
                       .rows = static_cast<int>(p.source.numel())};
  launch("merge_by_expert: cells", merge_cells_kernel, 1, merge_threads, t);
  if (t.rows > 0)
    launch("merge_by_expert: rows", merge_rows_kernel, blocks_for(t.rows, merge_threads), merge_threads, t);
}

// Rows on their way. A row without a source becomes zeros.
template <class T, int N>
__global__ void gather_kernel(Lanes l, Rows<T> y, Rows<T> x, const int* source) {
  for_own_packs<N>(l, [&](std::int64_t row, std::int64_t c) {
    Pack<T, N> pack;
    if (const int from = source[row]; from >= 0) pack = Pack<T, N>::load(x.row(from) + c, l.cols - c);
    pack.store(y.row(row) + c, l.cols - c);
  });
}

template <class T, int N>
void gather_packs(const Tensor& y, const Tensor& x, const Permutation& p) {
  const Lanes l = lanes_of(y.rows(), y.cols(), N);
  launch("permute", gather_kernel<T, N>, l.blocks(), l.threads(), l, rows_of<T>(y), rows_of<T>(x),
         static_cast<const int*>(data_of<std::int32_t>(p.source)));
}

void gather(const Tensor& y, const Tensor& x, const Permutation& p) {
  if (y.numel() == 0) return;
  visit_storage("permute", x.dtype(), [&]<class T>(TypeTag<T>) {
    rows_aligned(y, x) ? gather_packs<T, whole_pack<T>>(y, x, p) : gather_packs<T, 1>(y, x, p);
  });
}

constexpr int choices_at_once = 4;  // whose loads are under way together

template <class Out, class In, int N>
__global__ void combine_kernel(Lanes l, Rows<Out> y, bool add, Rows<In> rows, Rows<float> weights,
                               Rows<int> slots, int choices) {
  for_own_packs<N>(l, [&](std::int64_t token, std::int64_t c) {
    const int* slot = slots.row(token);
    float sum[N] = {};
    for (int first = 0; first < choices; first += choices_at_once) {
      Pack<In, N> packs[choices_at_once];
      bool here[choices_at_once];
#pragma unroll
      for (int j = 0; j < choices_at_once; ++j) {
        const int row = first + j < choices ? slot[first + j] : -1;
        here[j] = row >= 0;
        if (here[j]) packs[j] = Pack<In, N>::load(rows.row(row) + c, l.cols - c);
      }
#pragma unroll
      for (int j = 0; j < choices_at_once; ++j) {
        if (!here[j]) continue;
        const float w = weights ? weights.row(token)[first + j] : 1;
        float v[N];
        packs[j].read(v);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += w * v[i];
      }
    }
    Out* const to = y.row(token) + c;
    if (add) {
      float before[N];
      Pack<Out, N>::load(to, l.cols - c).read(before);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = before[i] + to_float(rounded<Out>(sum[i]));
    }
    Pack<Out, N>::of(sum).store(to, l.cols - c);
  });
}

/// Calls fn(TypeTag<Out>(), TypeTag<In>()): outputs are of the dtype of inputs or f32.
template <class Fn>
void visit_out_in(const char* op, DType out, DType in, Fn&& fn) {
  visit_storage(op, in, [&]<class In>(TypeTag<In>) {
    if (out == in) return fn(TypeTag<In>(), TypeTag<In>());
    expect(out == DType::f32, op, ": ", out, " from ", in);
    if constexpr (!std::is_same_v<In, float>) fn(TypeTag<float>(), TypeTag<In>());
  });
}

template <class Out, class In, int N>
void combine_packs(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p) {
  const Lanes l = lanes_of(y.to.rows(), y.to.cols(), N);
  launch("unpermute", combine_kernel<Out, In, N>, l.blocks(), l.threads(), l, rows_of<Out>(y.to),
         y.how == Into::add, rows_of<In>(rows), rows_of<float>(weights), rows_of<std::int32_t>(p.slot),
         static_cast<int>(p.slot.dim(1)));
}

void combine(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p) {
  if (y.to.numel() == 0) return;
  visit_out_in("unpermute", y.to.dtype(), rows.dtype(), [&]<class Out, class In>(TypeTag<Out>, TypeTag<In>) {
    constexpr int N = std::min(whole_pack<Out>, whole_pack<In>);
    rows_aligned(y.to, rows) ? combine_packs<Out, In, N>(y, rows, weights, p)
                             : combine_packs<Out, In, 1>(y, rows, weights, p);
  });
}

// Backward of unpermute: a block has a token. The first packs of dy stay in registers for all choices. A dot
// product is the sum of each thread in the order of its packs, then of the threads of a warp, then of the
// warps. Rows that are not aligned are read element by element in the same order.
template <class Out, class T>
struct UnpermuteTensors {
  Rows<Out> drows;       // null: not wanted
  Rows<float> dweights;  // null: not wanted
  Rows<T> dy, rows;
  Rows<float> weights;
  Rows<int> slots;
  int choices;
  bool add_rows, add_weights;
};

constexpr int held_packs = 3, choices_of_turn = 32;

template <class Out, class T, int N, bool aligned>
__global__ void __launch_bounds__(most_lanes)
    unpermute_backward_kernel(Lanes l, const UnpermuteTensors<Out, T> t) {
  using In = Pack<T, N>;
  __shared__ float of_warps[most_lanes / warp_threads][choices_of_turn];
  const int warp = threadIdx.x / warp_threads, warps = l.lanes / warp_threads;
  const std::int64_t token = blockIdx.x;
  const std::int64_t first_column = std::int64_t{threadIdx.x} * N, step = std::int64_t{l.lanes} * N;
  const int* slot = t.slots.row(token);
  const auto load = [&](const T* row, std::int64_t c) {
    return In::template load<aligned>(row + c, l.cols - c);
  };
  In held[held_packs];
#pragma unroll
  for (int k = 0; k < held_packs; ++k)
    if (const std::int64_t c = first_column + k * step; c < l.cols) held[k] = load(t.dy.row(token), c);

  for (int first = 0; first < t.choices; first += choices_of_turn) {
    const int count = min(choices_of_turn, t.choices - first);
    for (int j = 0; j < count; ++j) {
      const int row = slot[first + j];
      float dot = 0;
      if (row >= 0) {
        const float w = t.drows ? t.weights.row(token)[first + j] : 0;
        const auto pack = [&](const In& gradient, std::int64_t c) {
          float g[N];
          gradient.read(g);
          if (t.dweights) {
            float v[N];
            load(t.rows.row(row), c).read(v);
#pragma unroll
            for (int i = 0; i < N; ++i) dot += g[i] * v[i];
          }
          if (!t.drows) return;
          Out* const to = t.drows.row(row) + c;
#pragma unroll
          for (int i = 0; i < N; ++i) g[i] *= w;
          if (t.add_rows) {
            float before[N];
            Pack<Out, N>::template load<aligned>(to, l.cols - c).read(before);
#pragma unroll
            for (int i = 0; i < N; ++i) g[i] = before[i] + g[i];
          }
          Pack<Out, N>::of(g).template store<aligned>(to, l.cols - c);
        };
#pragma unroll
        for (int k = 0; k < held_packs; ++k)
          if (const std::int64_t c = first_column + k * step; c < l.cols) pack(held[k], c);
        for (std::int64_t c = first_column + held_packs * step; c < l.cols; c += step)
          pack(load(t.dy.row(token), c), c);
      }
      if (!t.dweights) continue;
      dot = warp_sum(dot);
      if (threadIdx.x % warp_threads == 0) of_warps[warp][j] = dot;
    }
    if (!t.dweights) continue;
    __syncthreads();
    if (threadIdx.x < count) {
      float sum = of_warps[0][threadIdx.x];
      for (int w = 1; w < warps; ++w) sum += of_warps[w][threadIdx.x];
      float& to = t.dweights.row(token)[first + threadIdx.x];
      to = t.add_weights ? to + sum : sum;
    }
    __syncthreads();
  }
}

template <class Out, class T>
void unpermute_backward_rows(const UnpermuteTensors<Out, T>& t, std::int64_t tokens, std::int64_t cols,
                             bool aligned) {
  constexpr int N = std::min(whole_pack<Out>, whole_pack<T>);
  const Lanes l = lanes_of(tokens, cols, N, true);
  launch("unpermute backward",
         aligned ? unpermute_backward_kernel<Out, T, N, true> : unpermute_backward_kernel<Out, T, N, false>,
         l.blocks(), l.threads(), l, t);
}

void combine_backward(const Output& drows, const Output& dweights, const Tensor& dy, const Tensor& rows,
                      const Tensor& weights, const Permutation& p) {
  if (p.slot.numel() == 0) return;
  visit_out_in("unpermute", drows.to ? drows.to.dtype() : dy.dtype(), dy.dtype(),
               [&]<class Out, class T>(TypeTag<Out>, TypeTag<T>) {
                 const UnpermuteTensors<Out, T> t{.drows = rows_of<Out>(drows.to),
                                                  .dweights = rows_of<float>(dweights.to),
                                                  .dy = rows_of<T>(dy),
                                                  .rows = rows_of<T>(rows),
                                                  .weights = rows_of<float>(weights),
                                                  .slots = rows_of<std::int32_t>(p.slot),
                                                  .choices = static_cast<int>(p.slot.dim(1)),
                                                  .add_rows = drows.how == Into::add,
                                                  .add_weights = dweights.how == Into::add};
                 unpermute_backward_rows(t, p.slot.dim(0), dy.cols(), rows_aligned(drows.to, dy, rows));
               });
}

const Provide provided[] = {{expert_offsets, offsets_of_experts},
                            {order_rows, order_by_expert},
                            {merge_by_expert_kernel, merge},
                            {gather_rows, gather},
                            {combine_rows, combine},
                            {combine_rows_backward, combine_backward}};

}  // namespace
}  // namespace nemocube::cuda

#include <cub/block/block_reduce.cuh>

#include "core/cuda/block_size.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/reduce_kernels.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/segments.h"

// A block has whole rows. Thread t has packs t, t + threads, .. of N neighbouring columns. The first `held` packs of a
// thread stay in registers, so that every operand is read once; only rows of more than threads * held packs are
// read a second time. A sum over a row is that of each thread in the order of its packs, then that of CUB's block
// reduction, whose order is fixed. Rows that are not aligned are read element by element, in the same order, so that
// a window of a wider tensor gives the bits of its copy.
namespace nemocube::cuda {
namespace {

template <class T>
struct ForwardTensors {
  Rows<T> y, sum, x, residual;  // sum and residual: null without a residual
  float* inv_rms;
  const T* weight;
  int cols;
  float eps;
};

constexpr int held_forward = 4;

template <class T, bool aligned, int threads>
__global__ void __launch_bounds__(threads) rmsnorm_forward_kernel(const ForwardTensors<T> t) {
  constexpr int N = whole_pack<T>;
  using Elements = Pack<T, N>;
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ float of_row;
  const std::int64_t row = blockIdx.x;
  const T* x = t.x.row(row);
  T* y = t.y.row(row);
  const int first = static_cast<int>(threadIdx.x) * N, step = threads * N;
  float squares = 0;
  // A pack of what is normed; with a residual, the sum, which is written.
  const auto begin = [&](int c) {
    Elements pack = Elements::template load<aligned>(x + c, t.cols - c);
    float v[N];
    pack.read(v);
    if (t.residual) {
      float other[N];
      Elements::template load<aligned>(t.residual.row(row) + c, t.cols - c).read(other);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += other[i];
      pack = Elements::of(v);
      pack.template store<aligned>(t.sum.row(row) + c, t.cols - c);
      pack.read(v);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v[i] * v[i];
    return pack;
  };
  const auto finish = [&](int c, const Elements& pack, float scale) {
    float v[N], w[N];
    pack.read(v);
    Elements::template load<aligned>(t.weight + c, t.cols - c).read(w);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * scale * w[i];
    Elements::of(v).template store<aligned>(y + c, t.cols - c);
  };

  Elements held[held_forward];
#pragma unroll
  for (int k = 0; k < held_forward; ++k)
    if (const int c = first + k * step; c < t.cols) held[k] = begin(c);
  for (int c = first + held_forward * step; c < t.cols; c += step) begin(c);

  const float total = Reduce(storage).Sum(squares);
  if (threadIdx.x == 0) {
    of_row = 1 / sqrtf(total / static_cast<float>(t.cols) + t.eps);
    t.inv_rms[row] = of_row;
  }
  __syncthreads();
  const float scale = of_row;

#pragma unroll
  for (int k = 0; k < held_forward; ++k)
    if (const int c = first + k * step; c < t.cols) finish(c, held[k], scale);
  const T* normed = t.residual ? t.sum.row(row) : x;
  for (int c = first + held_forward * step; c < t.cols; c += step)
    finish(c, Elements::template load<aligned>(normed + c, t.cols - c), scale);
}

template <class T, bool aligned>
void forward_rows(const ForwardTensors<T>& t, std::int64_t rows) {
  constexpr int held_columns = whole_pack<T> * held_forward;
  visit_block_size((t.cols + held_columns - 1) / held_columns, [&](auto threads) {
    launch("rmsnorm forward", rmsnorm_forward_kernel<T, aligned, threads>, blocks_for(rows, 1), threads, t);
  });
}

int columns_of(const Tensor& x) {
  require(x.cols() < (std::int64_t{1} << 30), "rmsnorm on cuda: want fewer than 2^30 columns, got ",
          x.cols());
  return static_cast<int>(x.cols());
}

void forward(const Tensor& y, const Tensor& inv_rms, const Tensor& sum, const Tensor& x,
             const Tensor& residual, const Tensor& weight, double eps) {
  visit_storage("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.rows() == 0) return;
    const ForwardTensors<T> t{.y = rows_of<T>(y),
                              .sum = rows_of<T>(sum),
                              .x = rows_of<T>(x),
                              .residual = rows_of<T>(residual),
                              .inv_rms = data_of<float>(inv_rms),
                              .weight = data_of<T>(weight),
                              .cols = columns_of(x),
                              .eps = static_cast<float>(eps)};
    if (rows_aligned(y, sum, x, residual, weight))
      forward_rows<T, true>(t, x.rows());
    else
      forward_rows<T, false>(t, x.rows());
  });
}

// Backward: a block has one of the segments of ops/reduce.h and writes that segment's part of dw. Each thread adds up
// the parts of its columns, in the order of the rows. The block works on several rows at a time: loads of all of
// them are under way together, and they share one reduction.
template <class T>
struct BackwardTensors {
  Rows<T> dx, dy, extra, x;  // dx and extra may be null
  Rows<float> dw;            // [segments, cols]; may be null
  const T* weight;
  const float* inv_rms;
  std::int64_t rows;
  int cols;
};

constexpr int held_backward = 2, rows_at_once = 2;

struct RowSums {
  float of[rows_at_once] = {};
};
struct AddRowSums {
  __device__ RowSums operator()(RowSums a, const RowSums& b) const {
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) a.of[r] += b.of[r];
    return a;
  }
};

/// What a thread holds of one row's pack.
template <class T>
struct RowPack {
  Pack<T, whole_pack<T>> x, dy, extra;
};

template <bool aligned, class T>
__device__ RowPack<T> load_row_pack(const BackwardTensors<T>& t, std::int64_t row, int c) {
  using Elements = Pack<T, whole_pack<T>>;
  RowPack<T> pack;
  pack.x = Elements::template load<aligned>(t.x.row(row) + c, t.cols - c);
  pack.dy = Elements::template load<aligned>(t.dy.row(row) + c, t.cols - c);
  if (t.extra) pack.extra = Elements::template load<aligned>(t.extra.row(row) + c, t.cols - c);
  return pack;
}

/// The pack's part of the sum over c of w dy x.
template <class T, int N>
__device__ float dot_of(const RowPack<T>& pack, const float (&w)[N]) {
  float x[N], dy[N], dot = 0;
  pack.x.read(x);
  pack.dy.read(dy);
#pragma unroll
  for (int i = 0; i < N; ++i) dot += w[i] * dy[i] * x[i];
  return dot;
}

/// Adds the pack's part of dw to `dw` and writes dx. `scale` is the row's inv_rms, `back` the factor of x in dx.
template <bool aligned, class T, int N>
__device__ void finish_row_pack(const BackwardTensors<T>& t, std::int64_t row, int c, const RowPack<T>& pack,
                                const float (&w)[N], float scale, float back, float (&dw)[N]) {
  float x[N], dy[N], extra[N];
  pack.x.read(x);
  pack.dy.read(dy);
  pack.extra.read(extra);  // zeros where there is none
#pragma unroll
  for (int i = 0; i < N; ++i) {
    dw[i] += dy[i] * x[i] * scale;
    dy[i] = w[i] * dy[i] * scale - x[i] * back + extra[i];
  }
  if (t.dx) Pack<T, N>::of(dy).template store<aligned>(t.dx.row(row) + c, t.cols - c);
}

template <int N>
__device__ void store_sums(float* to, const float (&sums)[N], int count) {
  constexpr int width = N < 4 ? N : 4;
#pragma unroll
  for (int i = 0; i < N; i += width) {
    float part[width];
#pragma unroll
    for (int j = 0; j < width; ++j) part[j] = sums[i + j];
    if (i < count) Pack<float, width>::of(part).store(to + i, count - i);
  }
}

template <class T, bool aligned, int threads>
__global__ void __launch_bounds__(threads) rmsnorm_backward_kernel(const BackwardTensors<T> t) {
  constexpr int N = whole_pack<T>;
  using Reduce = cub::BlockReduce<RowSums, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ RowSums of_rows;
  const int first = static_cast<int>(threadIdx.x) * N, step = threads * N;
  const std::int64_t begin = blockIdx.x * segment_rows;
  const std::int64_t end = begin + segment_rows < t.rows ? begin + segment_rows : t.rows;
  const auto weight = [&](int c, float(&w)[N]) {
    Pack<T, N>::template load<aligned>(t.weight + c, t.cols - c).read(w);
  };
  float dw[held_backward][N] = {};

  for (std::int64_t row = begin; row < end; row += rows_at_once) {
    RowPack<T> held[rows_at_once][held_backward];
    RowSums dots;
    const auto has = [&](int r) { return row + r < end; };
#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = first + k * step; c < t.cols) {
#pragma unroll
        for (int r = 0; r < rows_at_once; ++r)
          if (has(r)) held[r][k] = load_row_pack<aligned>(t, row + r, c);
        float w[N];
        weight(c, w);
#pragma unroll
        for (int r = 0; r < rows_at_once; ++r)
          if (has(r)) dots.of[r] += dot_of(held[r][k], w);
      }
    for (int c = first + held_backward * step; c < t.cols; c += step) {
      float w[N];
      weight(c, w);
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
        if (has(r)) dots.of[r] += dot_of(load_row_pack<aligned>(t, row + r, c), w);
    }

    dots = Reduce(storage).Reduce(dots, AddRowSums());
    if (threadIdx.x == 0) of_rows = dots;
    __syncthreads();
    float scale[rows_at_once], back[rows_at_once];
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      scale[r] = has(r) ? t.inv_rms[row + r] : 0;
      back[r] = scale[r] * scale[r] * scale[r] * of_rows.of[r] / static_cast<float>(t.cols);
    }
    __syncthreads();  // of_rows and storage are free for the next rows

#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = first + k * step; c < t.cols) {
        float w[N];
        weight(c, w);
#pragma unroll
        for (int r = 0; r < rows_at_once; ++r)
          if (has(r)) finish_row_pack<aligned>(t, row + r, c, held[r][k], w, scale[r], back[r], dw[k]);
      }
    // Columns beyond those in registers: dw is summed in the segment's row of partial sums, each element by one
    // thread.
    for (int c = first + held_backward * step; c < t.cols; c += step) {
      float w[N], sums[N] = {};
      weight(c, w);
      float* const place = t.dw ? t.dw.row(blockIdx.x) + c : nullptr;
      if (place && row > begin)
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (c + i < t.cols) sums[i] = place[i];
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
        if (has(r))
          finish_row_pack<aligned>(t, row + r, c, load_row_pack<aligned>(t, row + r, c), w, scale[r], back[r],
                                   sums);
      if (place) store_sums(place, sums, t.cols - c);
    }
  }

  if (!t.dw) return;
#pragma unroll
  for (int k = 0; k < held_backward; ++k)
    if (const int c = first + k * step; c < t.cols) store_sums(t.dw.row(blockIdx.x) + c, dw[k], t.cols - c);
}

template <class T, bool aligned>
void backward_rows(const BackwardTensors<T>& t) {
  constexpr int held_columns = whole_pack<T> * held_backward;
  visit_block_size((t.cols + held_columns - 1) / held_columns, [&](auto threads) {
    launch("rmsnorm backward", rmsnorm_backward_kernel<T, aligned, threads>, blocks_for(t.rows, segment_rows),
           threads, t);
  });
}

void backward(const Tensor& dx, const Output& dw, const Tensor& dy, const Tensor& extra, const Tensor& x,
              const Tensor& weight, const Tensor& inv_rms) {
  Tensor partial;
  if (dw.to) {
    const std::int64_t aligned = (x.cols() + 3) / 4 * 4;  // rows of whole 16-byte packs
    partial = Tensor::empty({segments_of(x.rows()), aligned}, DType::f32, x.device()).narrow(-1, 0, x.cols());
  }
  visit_storage("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.rows() == 0) return;
    const BackwardTensors<T> t{.dx = rows_of<T>(dx),
                               .dy = rows_of<T>(dy),
                               .extra = rows_of<T>(extra),
                               .x = rows_of<T>(x),
                               .dw = rows_of<float>(partial),
                               .weight = data_of<T>(weight),
                               .inv_rms = data_of<float>(inv_rms),
                               .rows = x.rows(),
                               .cols = columns_of(x)};
    if (rows_aligned(dx, dy, extra, x, weight))
      backward_rows<T, true>(t);
    else
      backward_rows<T, false>(t);
  });
  if (dw.to) sum_segments_kernel.on_cuda({{dw, partial}});
}

const Provide provided[] = {{rmsnorm_forward, forward}, {rmsnorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

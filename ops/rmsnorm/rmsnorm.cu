#include <cub/block/block_reduce.cuh>

#include "core/cuda/block_size.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/reduce_kernels.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

// A block has whole rows. Thread t has packs t, t + threads, .. of N neighbouring columns. The first `held` packs of a
// thread stay in registers, so that every operand is read once; only rows of more than threads * held packs are
// read a second time. A sum over a row is that of each thread in the order of its packs, then that of CUB's block
// reduction, whose order is fixed. Rows that are not aligned are read element by element, in the same order, so that
// a window of a wider tensor gives the bits of its copy.
namespace nemocube::cuda {
namespace {

/// The weights of a pack, plus the offset of kernels that have one.
template <bool aligned, bool has_offset, class T, int N>
__device__ void read_scales(const T* weight, int count, float offset, float (&w)[N]) {
  Pack<T, N>::template load<aligned>(weight, count).read(w);
  if constexpr (has_offset)
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] += offset;
}

template <class T>
struct ForwardTensors {
  Rows<T> y, sum, x, residual;  // sum and residual: null without a residual
  float* inv_rms;
  const T* weight;
  int cols;
  float eps, offset;
};

constexpr int held_forward = 4;

template <class T, bool aligned, bool has_offset, int threads>
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
    read_scales<aligned, has_offset>(t.weight + c, t.cols - c, t.offset, w);
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
    const auto kernel = t.offset == 0 ? rmsnorm_forward_kernel<T, aligned, false, threads>
                                      : rmsnorm_forward_kernel<T, aligned, true, threads>;
    launch("rmsnorm forward", kernel, blocks_for(rows, 1), threads, t);
  });
}

int columns_of(const Tensor& x) {
  require(x.cols() < (std::int64_t{1} << 30), "rmsnorm on cuda: want fewer than 2^30 columns, got ",
          x.cols());
  return static_cast<int>(x.cols());
}

void forward(const Tensor& y, const Tensor& inv_rms, const Tensor& sum, const Tensor& x,
             const Tensor& residual, const Tensor& weight, double eps, double offset) {
  visit_storage("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.rows() == 0) return;
    const ForwardTensors<T> t{.y = rows_of<T>(y),
                              .sum = rows_of<T>(sum),
                              .x = rows_of<T>(x),
                              .residual = rows_of<T>(residual),
                              .inv_rms = data_of<float>(inv_rms),
                              .weight = data_of<T>(weight),
                              .cols = columns_of(x),
                              .eps = static_cast<float>(eps),
                              .offset = static_cast<float>(offset)};
    if (rows_aligned(y, sum, x, residual, weight))
      forward_rows<T, true>(t, x.rows());
    else
      forward_rows<T, false>(t, x.rows());
  });
}

// Backward: a block has `backward_rows` rows and writes their part of dw. Each thread adds up the parts of its columns, in
// the order of the rows. A pack of the next row is loaded as soon as that of a row is done. 8,192 rows of 2688 columns make
// 373 blocks, of which an H200 holds 396 at a time.
template <class T>
struct BackwardTensors {
  Rows<T> dx, dy, extra, x;  // dx and extra may be null
  Rows<float> dw;            // [blocks, cols]; may be null
  const T* weight;
  const float* inv_rms;
  std::int64_t rows;
  int cols;
  float offset;
};

constexpr int held_backward = 3, backward_rows = 22;

/// What a thread holds of one row's pack from before the row's sum on.
template <class T>
struct RowPack {
  Pack<T, whole_pack<T>> x, dy;
};

/// The thread's first column in the operands of a row.
template <class T>
struct RowPlace {
  const T *x, *dy, *extra;
  T* dx;
  __device__ RowPlace(const BackwardTensors<T>& t, std::int64_t row, int column)
      : x(t.x.row(row) + column),
        dy(t.dy.row(row) + column),
        extra(t.extra ? t.extra.row(row) + column : nullptr),
        dx(t.dx ? t.dx.row(row) + column : nullptr) {}
  __device__ void next_row(const BackwardTensors<T>& t) {
    x += t.x.stride;
    dy += t.dy.stride;
    extra += t.extra.stride;
    dx += t.dx.stride;
  }
};

template <bool aligned, class T>
__device__ RowPack<T> load_row_pack(const T* x, const T* dy, int count) {
  using Elements = Pack<T, whole_pack<T>>;
  return {Elements::template load<aligned>(x, count), Elements::template load<aligned>(dy, count)};
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

/// Adds the pack's part of dw to `dw` and makes dx of `extra`. `scale` is the row's inv_rms, `back` the factor of x in dx.
template <class T, int N>
__device__ void finish_row_pack(Pack<T, N>& extra, const RowPack<T>& pack, const float (&w)[N], float scale,
                                float back, float (&dw)[N]) {
  float x[N], dy[N], dx[N];
  pack.x.read(x);
  pack.dy.read(dy);
  extra.read(dx);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    dw[i] += dy[i] * x[i] * scale;
    dx[i] = w[i] * dy[i] * scale + (dx[i] - x[i] * back);
  }
  extra = Pack<T, N>::of(dx);
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

/// Blocks of so many threads that a multiprocessor shall hold.
constexpr int blocks_of_multiprocessor(int threads) { return threads > 384 ? 1 : 384 / threads; }

// `aligned`: rows are aligned and have whole packs only.
template <class T, bool aligned, bool has_offset, int threads>
__global__ void __launch_bounds__(threads, blocks_of_multiprocessor(threads))
    rmsnorm_backward_kernel(const BackwardTensors<T> t) {
  constexpr int N = whole_pack<T>, step = threads * N;
  using Elements = Pack<T, N>;
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ float of_row;
  const int first = static_cast<int>(threadIdx.x) * N,
            cols = t.cols - first;  // cols: from the thread's first on
  const std::int64_t begin = std::int64_t{blockIdx.x} * backward_rows;
  const int height = static_cast<int>(t.rows - begin < backward_rows ? t.rows - begin : backward_rows);
  const T* const weight = t.weight + first;
  float* const partial = t.dw ? t.dw.row(blockIdx.x) + first : nullptr;
  RowPlace<T> at(t, begin, first);
  // Elements from c on that a pack may touch.
  const auto count = [&](int c) { return aligned ? N : cols - c; };
  const auto read_weight = [&](int c, float(&w)[N]) {
    read_scales<aligned, has_offset>(weight + c, count(c), t.offset, w);
  };
  float dw[held_backward][N] = {};
  RowPack<T> held[held_backward];
#pragma unroll
  for (int k = 0; k < held_backward; ++k)
    if (const int c = k * step; c < cols) held[k] = load_row_pack<aligned>(at.x + c, at.dy + c, count(c));

  for (int r = 0; r < height; ++r, at.next_row(t)) {
    const float scale = t.inv_rms[begin + r];
    Elements extra[held_backward];
#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = k * step; c < cols && at.extra)
        extra[k] = Elements::template load<aligned>(at.extra + c, count(c));
    float dot = 0, w[N];
#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = k * step; c < cols) {
        read_weight(c, w);
        dot += dot_of(held[k], w);
      }
    for (int c = held_backward * step; c < cols; c += step) {
      read_weight(c, w);
      dot += dot_of(load_row_pack<aligned>(at.x + c, at.dy + c, count(c)), w);
    }

    dot = Reduce(storage).Sum(dot);
    if (threadIdx.x == 0) of_row = dot;
    __syncthreads();
    const float back = scale * scale * scale * of_row / static_cast<float>(t.cols);
    __syncthreads();  // of_row and storage are free for the next row

#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = k * step; c < cols) {
        read_weight(c, w);
        finish_row_pack(extra[k], held[k], w, scale, back, dw[k]);
        if (t.dx) extra[k].template store<aligned>(at.dx + c, count(c));
        if (r + 1 < height)
          held[k] = load_row_pack<aligned>(at.x + t.x.stride + c, at.dy + t.dy.stride + c, count(c));
      }
    // Columns beyond those in registers: dw is summed in the block's row of partial sums, each element by one thread.
    for (int c = held_backward * step; c < cols; c += step) {
      float sums[N] = {};
      if (partial && r > 0)
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (c + i < cols) sums[i] = partial[c + i];
      Elements out;
      if (at.extra) out = Elements::template load<aligned>(at.extra + c, count(c));
      read_weight(c, w);
      finish_row_pack(out, load_row_pack<aligned>(at.x + c, at.dy + c, count(c)), w, scale, back, sums);
      if (t.dx) out.template store<aligned>(at.dx + c, count(c));
      if (partial) store_sums(partial + c, sums, cols - c);
    }
  }

  if (!partial) return;
#pragma unroll
  for (int k = 0; k < held_backward; ++k)
    if (const int c = k * step; c < cols) store_sums(partial + c, dw[k], cols - c);
}

template <class T, bool aligned>
void backward_rows_of(const BackwardTensors<T>& t) {
  constexpr int held_columns = whole_pack<T> * held_backward;
  visit_block_size((t.cols + held_columns - 1) / held_columns, [&](auto threads) {
    const auto kernel = t.offset == 0 ? rmsnorm_backward_kernel<T, aligned, false, threads>
                                      : rmsnorm_backward_kernel<T, aligned, true, threads>;
    launch("rmsnorm backward", kernel, blocks_for(t.rows, backward_rows), threads, t);
  });
}

void backward(const Tensor& dx, const Output& dw, const Tensor& dy, const Tensor& extra, const Tensor& x,
              const Tensor& weight, const Tensor& inv_rms, double offset) {
  Tensor partial;
  if (dw.to) {
    const std::int64_t aligned = (x.cols() + 3) / 4 * 4;  // rows of whole 16-byte packs
    partial = Tensor::empty({(x.rows() + backward_rows - 1) / backward_rows, aligned}, DType::f32, x.device())
                  .narrow(-1, 0, x.cols());
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
                               .cols = columns_of(x),
                               .offset = static_cast<float>(offset)};
    if (t.cols % whole_pack<T> == 0 && rows_aligned(dx, dy, extra, x, weight))
      backward_rows_of<T, true>(t);
    else
      backward_rows_of<T, false>(t);
  });
  if (dw.to) sum_segments_kernel.on_cuda({{dw, partial}});
}

const Provide provided[] = {{rmsnorm_forward, forward}, {rmsnorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

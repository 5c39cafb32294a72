#pragma once
#include "core/cuda/block_size.cuh"
#include "core/cuda/block_sum.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/reduce_kernels.h"
#include "ops/row_norm_kernels.h"

// The norms of rows on CUDA. A block has whole rows. Thread t has packs t, t + threads, .. of N neighbouring
// columns. The first `held` packs of a thread stay in registers, so that every operand is read once; only
// rows of more than threads * held packs are read again. A sum over a row is that of each thread in the order
// of its packs, then that of CUB's block reduction, whose order is fixed. Rows that are not aligned are read
// element by element, in the same order, so that a window of a wider tensor gives the bits of its copy.
namespace nemocube::cuda::row_norm {

/// The weights of a pack from column c on, plus the offset in the form that has one. The unweighted form has
/// ones, and does not read `weight`, which is null there.
template <NormForm form, bool aligned, class T, int N>
__device__ void read_scales(const T* weight, int c, int count, float offset, float (&w)[N]) {
  if constexpr (form == NormForm::unweighted) {
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] = 1;
  } else {
    Pack<T, N>::template load<aligned>(weight + c, count).read(w);
    if constexpr (form == NormForm::offset)
#pragma unroll
      for (int i = 0; i < N; ++i) w[i] += offset;
  }
}

template <class T>
struct ForwardTensors {
  Rows<T> y, sum, x, residual;  // sum and residual: null without a residual
  float *mean, *inv;            // mean: null unless centred
  const T *weight, *bias;       // weight: null in the unweighted form; bias may be null
  int cols;
  float eps, offset;
};

constexpr int held_forward = 4;

template <class T, NormForm form, bool aligned, int threads>
__global__ void __launch_bounds__(threads) norm_forward_kernel(const ForwardTensors<T> t) {
  constexpr int N = whole_pack<T>;
  constexpr bool centred = form == NormForm::centred;
  using Elements = Pack<T, N>;
  const std::int64_t row = blockIdx.x;
  const T* x = t.x.row(row);
  T* y = t.y.row(row);
  const int first = static_cast<int>(threadIdx.x) * N, step = threads * N;
  float total = 0;  // of x when centred, else of x^2
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
    for (int i = 0; i < N; ++i) total += centred ? v[i] : v[i] * v[i];
    return pack;
  };
  const T* normed = t.residual ? t.sum.row(row) : x;
  const auto again = [&](int c) { return Elements::template load<aligned>(normed + c, t.cols - c); };

  Elements held[held_forward];
#pragma unroll
  for (int k = 0; k < held_forward; ++k)
    if (const int c = first + k * step; c < t.cols) held[k] = begin(c);
  for (int c = first + held_forward * step; c < t.cols; c += step) begin(c);

  const auto cols = static_cast<float>(t.cols);
  total = block_sum<threads>(total);
  float mean = 0;
  if constexpr (centred) {
    mean = total / cols;
    total = 0;
    const auto add_squares = [&](int c, const Elements& pack) {
      float v[N];
      pack.read(v);
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (c + i < t.cols) total += (v[i] - mean) * (v[i] - mean);
    };
#pragma unroll
    for (int k = 0; k < held_forward; ++k)
      if (const int c = first + k * step; c < t.cols) add_squares(c, held[k]);
    for (int c = first + held_forward * step; c < t.cols; c += step) add_squares(c, again(c));
    total = block_sum<threads>(total);
  }
  const float scale = 1 / sqrtf(total / cols + t.eps);
  if (threadIdx.x == 0) {
    t.inv[row] = scale;
    if constexpr (centred) t.mean[row] = mean;
  }

  const auto finish = [&](int c, const Elements& pack) {
    float v[N], w[N];
    pack.read(v);
    read_scales<form, aligned>(t.weight, c, t.cols - c, t.offset, w);
    if constexpr (centred) {
      float b[N] = {};
      if (t.bias) Elements::template load<aligned>(t.bias + c, t.cols - c).read(b);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = (v[i] - mean) * scale * w[i] + b[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = v[i] * scale * w[i];
    }
    Elements::of(v).template store<aligned>(y + c, t.cols - c);
  };
#pragma unroll
  for (int k = 0; k < held_forward; ++k)
    if (const int c = first + k * step; c < t.cols) finish(c, held[k]);
  for (int c = first + held_forward * step; c < t.cols; c += step) finish(c, again(c));
}

inline int columns_of(const char* op, const Tensor& x) {
  require(x.cols() < (std::int64_t{1} << 30), op, " on cuda: want fewer than 2^30 columns, got ", x.cols());
  return static_cast<int>(x.cols());
}
template <class T>
T* optional_data(const Tensor& t) {
  return t ? data_of<T>(t) : nullptr;
}

/// `op` names the operation in errors, `name` the launch.
template <NormForm form>
void forward(const char* op, const char* name, const NormForward& o) {
  visit_storage(op, o.x.dtype(), [&]<class T>(TypeTag<T>) {
    if (o.x.rows() == 0) return;
    const ForwardTensors<T> t{.y = rows_of<T>(o.y),
                              .sum = rows_of<T>(o.sum),
                              .x = rows_of<T>(o.x),
                              .residual = rows_of<T>(o.residual),
                              .mean = optional_data<float>(o.mean),
                              .inv = data_of<float>(o.inv),
                              .weight = optional_data<T>(o.weight),
                              .bias = optional_data<T>(o.bias),
                              .cols = columns_of(op, o.x),
                              .eps = static_cast<float>(o.eps),
                              .offset = static_cast<float>(o.offset)};
    const bool aligned = rows_aligned(o.y, o.sum, o.x, o.residual, o.weight, o.bias);
    constexpr int held_columns = whole_pack<T> * held_forward;
    visit_block_size((t.cols + held_columns - 1) / held_columns, [&](auto threads) {
      const auto kernel = aligned ? norm_forward_kernel<T, form, true, threads>
                                  : norm_forward_kernel<T, form, false, threads>;
      launch(name, kernel, blocks_for(o.x.rows(), 1), threads, t);
    });
  });
}

// Backward: a block has `backward_rows` rows and writes their part of dw and db. Each thread adds up the
// parts of its columns, in the order of the rows. A pack of the next row is loaded as soon as that of a row
// is done. Not centred, 8,192 rows of 2688 columns make 373 blocks, of which an H200 holds 396 at a time.
// Centred, with twice the sums to write, longer segments keep these to 3 % of the bytes in bf16; 8,192 rows
// make 128 blocks for 132 multiprocessors.
template <class T>
struct BackwardTensors {
  Rows<T> dx, dy, extra, x;  // dx and extra may be null
  Rows<float> dw, db;        // [blocks, cols]; may be null
  const T* weight;           // null in the unweighted form
  const float *mean, *inv;   // mean: null unless centred
  std::int64_t rows;
  int cols;
  float offset;
};

/// Packs in registers. The centred form has twice the sums over rows.
template <NormForm form>
constexpr int held_backward = form == NormForm::centred ? 2 : 3;
template <NormForm form>
constexpr int backward_rows = form == NormForm::centred ? static_cast<int>(segment_rows) : 22;

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

/// Sums over a row, with u = (offset + w) dy.
struct CentredSums {
  float dot, u;  // of u (x - mean) and of u
  __device__ CentredSums operator+(const CentredSums& other) const { return {dot + other.dot, u + other.u}; }
};
template <NormForm form>
using RowSums = std::conditional_t<form == NormForm::centred, CentredSums, float>;

/// Adds the pack's part to the sums over its row. Columns behind the last are zeros of w and dy.
template <class T, int N>
__device__ void add_row_sums(float& dot, const RowPack<T>& pack, const float (&w)[N], float) {
  float x[N], dy[N], own = 0;
  pack.x.read(x);
  pack.dy.read(dy);
#pragma unroll
  for (int i = 0; i < N; ++i) own += w[i] * dy[i] * x[i];
  dot += own;
}
template <class T, int N>
__device__ void add_row_sums(CentredSums& sums, const RowPack<T>& pack, const float (&w)[N], float mean) {
  float x[N], dy[N];
  pack.x.read(x);
  pack.dy.read(dy);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float u = w[i] * dy[i];
    sums.dot += u * (x[i] - mean);
    sums.u += u;
  }
}

/// Numbers of a row that its elements need: `back` is the factor of x - mean in dx, `shift` what dx is less
/// by.
struct RowFactors {
  float mean, scale, back, shift;
};
inline __device__ RowFactors row_factors(float, float scale, float dot, float cols) {
  return {0, scale, scale * scale * scale * dot / cols, 0};
}
inline __device__ RowFactors row_factors(float mean, float scale, const CentredSums& sums, float cols) {
  return {mean, scale, scale * scale * scale * sums.dot / cols, scale * (sums.u / cols)};
}

/// A pack's sums over rows. Only the centred form has db, and the unweighted one has none.
template <NormForm form, int N>
struct ParameterSums {
  float dw[form == NormForm::unweighted ? 1 : N], db[form == NormForm::centred ? N : 1];
};

/// Adds the pack's part of dw and db to `sums` and makes dx of `extra`.
template <NormForm form, class T, int N>
__device__ void finish_row_pack(Pack<T, N>& extra, const RowPack<T>& pack, const float (&w)[N],
                                const RowFactors& row, ParameterSums<form, N>& sums) {
  float x[N], dy[N], dx[N];
  pack.x.read(x);
  pack.dy.read(dy);
  extra.read(dx);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (form == NormForm::centred) {
      x[i] -= row.mean;
      dx[i] -= row.shift;
      sums.db[i] += dy[i];
    }
    if constexpr (form != NormForm::unweighted) sums.dw[i] += dy[i] * x[i] * row.scale;
    dx[i] = w[i] * dy[i] * row.scale + (dx[i] - x[i] * row.back);
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
template <class T, NormForm form, bool aligned, int threads>
__global__ void __launch_bounds__(threads, blocks_of_multiprocessor(threads))
    norm_backward_kernel(const BackwardTensors<T> t) {
  constexpr int N = whole_pack<T>, step = threads * N, packs = held_backward<form>;
  using Elements = Pack<T, N>;
  using Sums = ParameterSums<form, N>;
  const int first = static_cast<int>(threadIdx.x) * N,
            cols = t.cols - first;  // cols: from the thread's first on
  constexpr int most_rows = backward_rows<form>;
  const std::int64_t begin = std::int64_t{blockIdx.x} * most_rows;
  const int height = static_cast<int>(t.rows - begin < most_rows ? t.rows - begin : most_rows);
  const T* const weight = form == NormForm::unweighted ? nullptr : t.weight + first;
  float* const dw = t.dw ? t.dw.row(blockIdx.x) + first : nullptr;
  float* const db = form == NormForm::centred && t.db ? t.db.row(blockIdx.x) + first : nullptr;
  RowPlace<T> at(t, begin, first);
  // Elements from c on that a pack may touch.
  const auto count = [&](int c) { return aligned ? N : cols - c; };
  const auto read_weight = [&](int c, float(&w)[N]) {
    read_scales<form, aligned>(weight, c, count(c), t.offset, w);
  };
  const auto store_parameter_sums = [&](int c, const Sums& sums) {
    if constexpr (form != NormForm::unweighted)
      if (dw) store_sums(dw + c, sums.dw, cols - c);
    if constexpr (form == NormForm::centred)
      if (db) store_sums(db + c, sums.db, cols - c);
  };
  Sums sums[packs] = {};
  RowPack<T> held[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = k * step; c < cols) held[k] = load_row_pack<aligned>(at.x + c, at.dy + c, count(c));

  for (int r = 0; r < height; ++r, at.next_row(t)) {
    const float scale = t.inv[begin + r];
    float mean = 0;
    if constexpr (form == NormForm::centred) mean = t.mean[begin + r];
    Elements extra[packs];
#pragma unroll
    for (int k = 0; k < packs; ++k)
      if (const int c = k * step; c < cols && at.extra)
        extra[k] = Elements::template load<aligned>(at.extra + c, count(c));
    RowSums<form> of_row{};
    float w[N];
#pragma unroll
    for (int k = 0; k < packs; ++k)
      if (const int c = k * step; c < cols) {
        read_weight(c, w);
        add_row_sums(of_row, held[k], w, mean);
      }
    for (int c = packs * step; c < cols; c += step) {
      read_weight(c, w);
      add_row_sums(of_row, load_row_pack<aligned>(at.x + c, at.dy + c, count(c)), w, mean);
    }
    const RowFactors row = row_factors(mean, scale, block_sum<threads>(of_row), static_cast<float>(t.cols));

#pragma unroll
    for (int k = 0; k < packs; ++k)
      if (const int c = k * step; c < cols) {
        read_weight(c, w);
        finish_row_pack(extra[k], held[k], w, row, sums[k]);
        if (t.dx) extra[k].template store<aligned>(at.dx + c, count(c));
        if (r + 1 < height)
          held[k] = load_row_pack<aligned>(at.x + t.x.stride + c, at.dy + t.dy.stride + c, count(c));
      }
    // Columns beyond those in registers: dw and db are summed in the block's rows of partial sums, each
    // element by one thread.
    for (int c = packs * step; c < cols; c += step) {
      Sums partial = {};
      if (r > 0)
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (c + i < cols) {
            if constexpr (form != NormForm::unweighted)
              if (dw) partial.dw[i] = dw[c + i];
            if constexpr (form == NormForm::centred)
              if (db) partial.db[i] = db[c + i];
          }
      Elements out;
      if (at.extra) out = Elements::template load<aligned>(at.extra + c, count(c));
      read_weight(c, w);
      finish_row_pack(out, load_row_pack<aligned>(at.x + c, at.dy + c, count(c)), w, row, partial);
      if (t.dx) out.template store<aligned>(at.dx + c, count(c));
      store_parameter_sums(c, partial);
    }
  }

#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = k * step; c < cols) store_parameter_sums(c, sums[k]);
}

template <NormForm form>
void backward(const char* op, const char* name, const NormBackward& o) {
  const Tensor& x = o.x;
  SegmentSums sums;
  const auto sums_for = [&](const Output& out) {
    if (!out.to) return Tensor();
    const std::int64_t aligned = (x.cols() + 3) / 4 * 4;  // rows of whole 16-byte packs
    const Tensor partial =
        Tensor::empty({(x.rows() + backward_rows<form> - 1) / backward_rows<form>, aligned}, DType::f32,
                      x.device())
            .narrow(-1, 0, x.cols());
    sums.push_back({out, partial});
    return partial;
  };
  const Tensor dw = sums_for(o.dw), db = sums_for(o.db);
  visit_storage(op, x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.rows() == 0) return;
    const BackwardTensors<T> t{.dx = rows_of<T>(o.dx),
                               .dy = rows_of<T>(o.dy),
                               .extra = rows_of<T>(o.extra),
                               .x = rows_of<T>(x),
                               .dw = rows_of<float>(dw),
                               .db = rows_of<float>(db),
                               .weight = optional_data<T>(o.weight),
                               .mean = optional_data<float>(o.mean),
                               .inv = data_of<float>(o.inv),
                               .rows = x.rows(),
                               .cols = columns_of(op, x),
                               .offset = static_cast<float>(o.offset)};
    const bool aligned = t.cols % whole_pack<T> == 0 && rows_aligned(o.dx, o.dy, o.extra, x, o.weight);
    constexpr int held_columns = whole_pack<T> * held_backward<form>;
    visit_block_size((t.cols + held_columns - 1) / held_columns, [&](auto threads) {
      const auto kernel = aligned ? norm_backward_kernel<T, form, true, threads>
                                  : norm_backward_kernel<T, form, false, threads>;
      launch(name, kernel, blocks_for(t.rows, backward_rows<form>), threads, t);
    });
  });
  if (!sums.empty()) sum_segments_kernel.on_cuda(sums);
}

}  // namespace nemocube::cuda::row_norm

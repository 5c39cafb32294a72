#include <cub/block/block_reduce.cuh>

#include <limits>

#include "core/cuda/block_size.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/elementwise.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/cross_entropy/device_scale.cuh"
#include "ops/cross_entropy/logit_shape.cuh"
#include "ops/math.cuh"

namespace nemocube::cuda {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Of some logits z: m = max z and sum e^(z - m). A NaN is in the sum, not in the maximum. Where the maximum
/// is -inf, the sum is relative to 0, because -inf - -inf is NaN.
struct Softmax {
  float max = -infinity, sum = 0;
};
__device__ float shift_of(float max) { return max == -infinity ? 0 : max; }

struct JoinSoftmax {
  __device__ Softmax operator()(const Softmax& a, const Softmax& b) const {
    const float max = fmaxf(a.max, b.max), shift = shift_of(max);
    return {max, a.sum * quick_exp(a.max - shift) + b.sum * quick_exp(b.max - shift)};
  }
};

template <int n>
__device__ void add_logits(Softmax& s, const float (&z)[n]) {
  float max = s.max;
#pragma unroll
  for (int i = 0; i < n; ++i) max = fmaxf(max, z[i]);
  if (max > s.max) {
    s.sum *= quick_exp(s.max - max);
    s.max = max;
  }
  const float shift = shift_of(s.max);
#pragma unroll
  for (int i = 0; i < n; ++i) s.sum += quick_exp(z[i] - shift);
}

// A block has one row, which it reads in tiles of `threads` times a few packs. Thread t has packs t,
// t + threads, .. of a tile and keeps maximum and sum of its own logits; the block joins those of all threads
// in a fixed order.
constexpr int packs_at_once = 4;
template <class T, int threads>
constexpr std::int64_t tile_columns = std::int64_t{threads} * packs_at_once* whole_pack<T>;

template <class T>
struct Tile {
  static constexpr int N = whole_pack<T>;
  Pack<T, N> packs[packs_at_once];
};

/// Columns from c on that a pack may touch. `aligned`: rows are aligned and have whole packs only.
template <bool aligned, int N>
__device__ std::int64_t columns_from(std::int64_t c, std::int64_t cols) {
  return aligned ? N : cols - c;
}

/// Calls fn(index of the pack, its first column) for the packs that this thread has of a tile.
template <class T, int threads, class Fn>
__device__ void for_own_packs(std::int64_t tile_start, std::int64_t cols, Fn&& fn) {
  const std::int64_t first = tile_start + static_cast<int>(threadIdx.x) * whole_pack<T>;
#pragma unroll
  for (int j = 0; j < packs_at_once; ++j)
    if (const std::int64_t c = first + j * threads * whole_pack<T>; c < cols) fn(j, c);
}

template <bool aligned, int threads, class T>
__device__ Tile<T> load_tile(const T* z, std::int64_t tile_start, std::int64_t cols) {
  Tile<T> tile;
  for_own_packs<T, threads>(tile_start, cols, [&](int j, std::int64_t c) {
    constexpr int N = Tile<T>::N;
    tile.packs[j] = Pack<T, N>::template load<aligned>(z + c, columns_from<aligned, N>(c, cols));
  });
  return tile;
}

template <bool aligned, int threads, class T, class Shape>
__device__ void add_tile(Softmax& s, const Tile<T>& tile, std::int64_t tile_start, std::int64_t cols,
                         const Shape& shape) {
  constexpr int N = Tile<T>::N;
  float z[packs_at_once * N];
#pragma unroll
  for (int i = 0; i < packs_at_once * N; ++i) z[i] = -infinity;  // adds nothing
  for_own_packs<T, threads>(tile_start, cols, [&](int j, std::int64_t c) {
    float values[N];
    tile.packs[j].read(values);
    shape.template apply<aligned>(values, c, columns_from<aligned, N>(c, cols));
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < columns_from<aligned, N>(c, cols)) z[j * N + i] = values[i];
  });
  add_logits(s, z);
}

/// The result is that of the whole block, and each thread gets it.
template <int threads>
__device__ Softmax join_block(const Softmax& own) {
  using Reduce = cub::BlockReduce<Softmax, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ Softmax of_row;
  const Softmax all = Reduce(storage).Reduce(own, JoinSoftmax());
  if (threadIdx.x == 0) of_row = all;
  __syncthreads();
  return of_row;
}

/// z'[label]; 0 for a label that is no column.
template <class T, class Shape>
__device__ float at_label(const T* z, std::int64_t cols, std::int64_t label, const Shape& shape) {
  return label >= 0 && label < cols ? shape.at(to_float(z[label]), label) : 0;
}

__device__ double loss_of(float max, float sum, float at_label) {
  return static_cast<double>(max) - at_label + log(static_cast<double>(sum));
}

template <class T, bool aligned, int threads, class Shape>
__global__ void __launch_bounds__(threads)
    statistics_kernel(float* max, Rows<float> sums, Rows<T> logits, const std::int64_t* labels,
                      std::int64_t begin, std::int64_t cols, Shape shape) {
  const std::int64_t row = blockIdx.x, label = labels[row];
  Softmax s;
  float logit = 0;
  if (label == ignored_label) {
    s.max = 0;
  } else {
    const T* z = logits.row(row);
    // A tile is under way while the one before it is added.
    Tile<T> next = load_tile<aligned, threads>(z, 0, cols);
    for (std::int64_t c = 0; c < cols; c += tile_columns<T, threads>) {
      const Tile<T> tile = next;
      next = load_tile<aligned, threads>(z, c + tile_columns<T, threads>, cols);
      add_tile<aligned, threads>(s, tile, c, cols, shape);
    }
    s = join_block<threads>(s);
    logit = at_label(z, cols, label - begin, shape);
  }
  if (threadIdx.x > 0) return;
  max[row] = s.max;
  sums.row(row)[0] = s.sum;
  sums.row(row)[1] = logit;
}

template <class T, bool aligned>
void statistics_of_rows(const RowStatistics& s, const Tensor& logits, const Tensor& labels,
                        std::int64_t begin, const LogitShape& shape) {
  visit_block_size(blocks_for(logits.cols(), packs_at_once * whole_pack<T>), [&](auto threads) {
    visit_shape(shape, [&]<class Shape>(const Shape& shaped) {
      launch("cross_entropy statistics", statistics_kernel<T, aligned, threads, Shape>,
             blocks_for(logits.rows(), 1), threads, data_of<float>(s.max), rows_of<float>(s.sums),
             rows_of<T>(logits), static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), begin,
             logits.cols(), shaped);
    });
  });
}

void statistics(const RowStatistics& s, const Tensor& logits, const Tensor& labels, std::int64_t begin,
                const LogitShape& shape) {
  visit_storage("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    if (logits.rows() == 0) return;
    if (logits.cols() % whole_pack<T> == 0 && rows_aligned(logits, shape.bias))
      statistics_of_rows<T, true>(s, logits, labels, begin, shape);
    else
      statistics_of_rows<T, false>(s, logits, labels, begin, shape);
  });
}

constexpr int row_threads = 128;  // of kernels with a thread for each row

/// In a kernel: calls fn(row) for the row of this thread.
template <class Fn>
__device__ void for_own_row(std::int64_t rows, Fn&& fn) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x;
  if (row < rows) fn(row);
}

__global__ void __launch_bounds__(row_threads)
    rescale_kernel(Rows<float> sums, const float* max, const float* own_max, std::int64_t rows) {
  for_own_row(rows, [&](std::int64_t row) { sums.row(row)[0] *= expf(own_max[row] - max[row]); });
}

void rescale(const RowStatistics& s, const Tensor& own_max) {
  if (own_max.numel() == 0) return;
  launch("cross_entropy rescale", rescale_kernel, blocks_for(own_max.numel(), row_threads), row_threads,
         rows_of<float>(s.sums), static_cast<const float*>(data_of<float>(s.max)),
         static_cast<const float*>(data_of<float>(own_max)), own_max.numel());
}

__global__ void __launch_bounds__(row_threads)
    losses_kernel(double* losses, const float* max, Rows<float> sums, const std::int64_t* labels,
                  std::int64_t rows) {
  for_own_row(rows, [&](std::int64_t row) {
    losses[row] = labels[row] == ignored_label ? 0 : loss_of(max[row], sums.row(row)[0], sums.row(row)[1]);
  });
}

void losses(const Tensor& losses, const RowStatistics& s, const Tensor& labels) {
  if (losses.numel() == 0) return;
  launch("cross_entropy losses", losses_kernel, blocks_for(losses.numel(), row_threads), row_threads,
         data_of<double>(losses), static_cast<const float*>(data_of<float>(s.max)), rows_of<float>(s.sums),
         static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), losses.numel());
}

__global__ void __launch_bounds__(row_threads)
    weigh_kernel(double* losses, const double* weights, std::int64_t rows) {
  for_own_row(rows, [&](std::int64_t row) { losses[row] *= weights[row]; });
}

void weigh(const Tensor& losses, const Tensor& weights) {
  launch("cross_entropy weigh", weigh_kernel, blocks_for(losses.numel(), row_threads), row_threads,
         data_of<double>(losses), static_cast<const double*>(data_of<double>(weights)), losses.numel());
}

// Thread t of one block adds losses t, t + sum_threads, ..; the block adds the sums of its threads.
constexpr int sum_threads = 512;

__global__ void __launch_bounds__(sum_threads)
    sum_kernel(float* loss, const double* losses, std::int64_t rows) {
  using Reduce = cub::BlockReduce<double, sum_threads>;
  __shared__ typename Reduce::TempStorage storage;
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += sum_threads) sum += losses[row];
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum);
}

void sum(const Tensor& loss, const Tensor& losses) {
  launch("cross_entropy sum", sum_kernel, 1, sum_threads, data_of<float>(loss),
         static_cast<const double*>(data_of<double>(losses)), losses.numel());
}

/// Numbers of a row for its gradient scale (factor e^(z - shift) - [at the label]).
struct RowGradient {
  float shift, factor, scale;
  std::int64_t label;  // as a column; any number that is none for a label that is not here
};

/// The gradient of a pack of logits z', whose first column is c, in place of them.
template <int N, class Shape>
__device__ void gradient_of_pack(float (&z)[N], std::int64_t c, const RowGradient& row, const Shape& shape) {
  const std::int64_t at = row.label - c;
  const bool has_label = at >= 0 && at < N;
  float of_label = 0;
  if (has_label) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i == at) of_label = row.scale * (row.factor * quick_exp(z[i] - row.shift) - 1) * shape.slope(z[i]);
  }
  const float both = row.scale * row.factor;
#pragma unroll
  for (int i = 0; i < N; ++i) z[i] = both * quick_exp(z[i] - row.shift) * shape.slope(z[i]);
  if (has_label) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i == at) z[i] = of_label;
  }
}

template <class D, class T>
constexpr int gradient_pack = whole_pack<std::conditional_t<(sizeof(D) > sizeof(T)), D, T>>;

// d may be z, so that no pointer is restricted.
template <class D, class T, bool aligned, class Shape>
__global__ void gradient_kernel(RowBlocks grid, Rows<D> d, Rows<T> logits, const float* max, Rows<float> sums,
                                const std::int64_t* labels, std::int64_t begin, DeviceScale scale,
                                Shape shape) {
  constexpr int N = gradient_pack<D, T>;
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    const std::int64_t label = labels[r];
    float z[N] = {};
    if (label != ignored_label) {
      const RowGradient row{.shift = max[r],
                            .factor = 1 / sums.row(r)[0],
                            .scale = static_cast<float>(scale.value(r)),
                            .label = label - begin};
      Pack<T, N>::template load<aligned>(logits.row(r) + c, aligned ? N : count).read(z);
      shape.template apply<aligned>(z, c, aligned ? N : count);
      gradient_of_pack(z, c, row, shape);
    }
    Pack<D, N>::of(z).template store<aligned>(d.row(r) + c, aligned ? N : count);
  });
}

template <class D, class T>
void gradient_of(const Tensor& dlogits, const Tensor& logits, const RowStatistics& s, const Tensor& labels,
                 std::int64_t begin, const GradScale& scale, const LogitShape& shape) {
  visit_shape(shape, [&]<class Shape>(const Shape& shaped) {
    const auto kernel = logits.cols() % gradient_pack<D, T> == 0 && rows_aligned(dlogits, logits, shape.bias)
                            ? gradient_kernel<D, T, true, Shape>
                            : gradient_kernel<D, T, false, Shape>;
    launch_elementwise<gradient_pack<D, T>>(
        "cross_entropy gradient", kernel, logits.rows(), logits.cols(), rows_of<D>(dlogits),
        rows_of<T>(logits), static_cast<const float*>(data_of<float>(s.max)), rows_of<float>(s.sums),
        static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), begin, on_device(scale), shaped);
  });
}

void gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& s, const Tensor& labels,
              std::int64_t begin, const GradScale& scale, const LogitShape& shape) {
  visit_storage("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D>) {
    if (logits.numel() == 0) return;
    if (logits.dtype() == dlogits.dtype())
      gradient_of<D, D>(dlogits, logits, s, labels, begin, scale, shape);
    else
      gradient_of<D, float>(dlogits, logits, s, labels, begin, scale, shape);
  });
}

// Losses and gradient in one launch. The last tile of a row stays in registers, the first `held` ones in
// shared memory, where each thread reads only what it wrote. The others are read again, the last ones first,
// because they are the likeliest to be in the L2 cache.
// d may be z: a thread writes the columns that it has read itself, and z[label] is read before any thread
// writes.
template <class D, class T, bool aligned, int threads, class Shape>
__global__ void __launch_bounds__(threads)
    losses_and_gradient_kernel(Rows<D> d, double* losses, Rows<T> logits, const std::int64_t* labels,
                               std::int64_t cols, DeviceScale scale, int held, Shape shape) {
  constexpr int N = Tile<T>::N;
  constexpr std::int64_t columns = tile_columns<T, threads>;
  extern __shared__ __align__(16) char held_bytes[];
  const auto held_packs = reinterpret_cast<Pack<T, N>*>(held_bytes);
  const auto held_pack = [&](std::int64_t tile, int j) -> Pack<T, N>& {
    return held_packs[(tile * packs_at_once + j) * threads + static_cast<int>(threadIdx.x)];
  };
  const std::int64_t row = blockIdx.x, label = labels[row], tiles = (cols + columns - 1) / columns;
  const T* z = logits.row(row);
  if (label == ignored_label) {
    if (threadIdx.x == 0) losses[row] = 0;
    for (std::int64_t t = 0; t < tiles; ++t)
      for_own_packs<T, threads>(t * columns, cols, [&](int, std::int64_t c) {
        Pack<D, N>{}.template store<aligned>(d.row(row) + c, columns_from<aligned, N>(c, cols));
      });
    return;
  }
  Softmax s;
  Tile<T> tile, next = load_tile<aligned, threads>(z, 0, cols);  // under way while one is worked on
  for (std::int64_t t = 0; t < tiles; ++t) {
    tile = next;
    next = load_tile<aligned, threads>(z, (t + 1) * columns, cols);
    if (t < held)
      for_own_packs<T, threads>(t * columns, cols,
                                [&](int j, std::int64_t) { held_pack(t, j) = tile.packs[j]; });
    add_tile<aligned, threads>(s, tile, t * columns, cols, shape);
  }
  float logit = 0;
  if (threadIdx.x == 0) logit = at_label(z, cols, label, shape);
  s = join_block<threads>(s);
  if (s.max == -infinity) s.sum = NAN;  // no token is possible
  if (threadIdx.x == 0) losses[row] = loss_of(s.max, s.sum, logit);

  const RowGradient of_row{
      .shift = s.max, .factor = 1 / s.sum, .scale = static_cast<float>(scale.value(row)), .label = label};
  for (std::int64_t t = tiles - 1; t >= 0; --t) {
    if (t > held)
      next = load_tile<aligned, threads>(z, (t - 1) * columns, cols);
    else if (t > 0)
      for_own_packs<T, threads>((t - 1) * columns, cols,
                                [&](int j, std::int64_t) { next.packs[j] = held_pack(t - 1, j); });
    for_own_packs<T, threads>(t * columns, cols, [&](int j, std::int64_t c) {
      float values[N];
      tile.packs[j].read(values);
      shape.template apply<aligned>(values, c, columns_from<aligned, N>(c, cols));
      gradient_of_pack(values, c, of_row, shape);
      Pack<D, N>::of(values).template store<aligned>(d.row(row) + c, columns_from<aligned, N>(c, cols));
    });
    tile = next;
  }
}

template <class D, class T, bool aligned>
void losses_and_gradient_of_rows(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                                 const Tensor& labels, const GradScale& scale, const LogitShape& shape) {
  visit_block_size(blocks_for(logits.cols(), packs_at_once * whole_pack<T>), [&](auto threads) {
    constexpr std::int64_t columns = tile_columns<T, threads>;
    constexpr std::int64_t tile_bytes = columns * std::int64_t{sizeof(T)};
    constexpr std::int64_t of_reduction = 1024;  // bytes, more than join_block() has
    const std::int64_t most = (device_limits().shared_bytes - of_reduction) / tile_bytes,
                       held = std::min<std::int64_t>(most, (logits.cols() - 1) / columns);
    visit_shape(shape, [&]<class Shape>(const Shape& shaped) {
      launch_shared("cross_entropy losses and gradient",
                    losses_and_gradient_kernel<D, T, aligned, threads, Shape>, blocks_for(logits.rows(), 1),
                    threads, static_cast<std::size_t>(held * tile_bytes), rows_of<D>(dlogits),
                    data_of<double>(losses), rows_of<T>(logits),
                    static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), logits.cols(),
                    on_device(scale), static_cast<int>(held), shaped);
    });
  });
}

template <class D, class T>
void losses_and_gradient_of(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                            const Tensor& labels, const GradScale& scale, const LogitShape& shape) {
  if (logits.cols() % whole_pack<T> == 0 && rows_aligned(dlogits, logits, shape.bias))
    losses_and_gradient_of_rows<D, T, true>(dlogits, losses, logits, labels, scale, shape);
  else
    losses_and_gradient_of_rows<D, T, false>(dlogits, losses, logits, labels, scale, shape);
}

void losses_and_gradient(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                         const Tensor& labels, const GradScale& scale, const LogitShape& shape) {
  visit_storage("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D>) {
    if (logits.rows() == 0) return;
    if (logits.dtype() == dlogits.dtype())
      losses_and_gradient_of<D, D>(dlogits, losses, logits, labels, scale, shape);
    else
      losses_and_gradient_of<D, float>(dlogits, losses, logits, labels, scale, shape);
  });
}

// A block has one row. Nothing is read where the factor is 1.
template <class D, bool aligned>
__global__ void __launch_bounds__(elementwise_threads)
    scale_kernel(Rows<D> d, std::int64_t cols, const float* dloss) {
  constexpr int N = whole_pack<D>;
  const float factor = *dloss;
  if (factor == 1) return;
  D* const row = d.row(blockIdx.x);
  for (std::int64_t c = static_cast<int>(threadIdx.x) * N; c < cols; c += elementwise_threads * N) {
    const std::int64_t columns = columns_from<aligned, N>(c, cols);
    float values[N];
    Pack<D, N>::template load<aligned>(row + c, columns).read(values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= factor;
    Pack<D, N>::of(values).template store<aligned>(row + c, columns);
  }
}

void scale(const Tensor& dlogits, const Tensor& dloss) {
  visit_storage("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D>) {
    if (dlogits.numel() == 0) return;
    const auto kernel = dlogits.cols() % whole_pack<D> == 0 && rows_aligned(dlogits) ? scale_kernel<D, true>
                                                                                     : scale_kernel<D, false>;
    launch("cross_entropy scale", kernel, blocks_for(dlogits.rows(), 1), elementwise_threads,
           rows_of<D>(dlogits), dlogits.cols(), static_cast<const float*>(data_of<float>(dloss)));
  });
}

template <class T, bool aligned>
__global__ void shape_kernel(RowBlocks grid, Rows<T> logits, ShapedLogits shape) {
  constexpr int N = whole_pack<T>;
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    T* const at = logits.row(r) + c;
    float z[N];
    Pack<T, N>::template load<aligned>(at, count).read(z);
    shape.apply<aligned>(z, c, count);
    Pack<T, N>::of(z).template store<aligned>(at, count);
  });
}

void shape_rows(const Tensor& logits, const LogitShape& shape) {
  visit_storage("shape_logits", logits.dtype(), [&]<class T>(TypeTag<T>) {
    visit_shape(shape, [&]<class Shape>(const Shape& shaped) {
      if constexpr (!Shape::plain)
        launch_elementwise<whole_pack<T>>(
            "shape_logits", rows_aligned(logits, shape.bias) ? shape_kernel<T, true> : shape_kernel<T, false>,
            logits.rows(), logits.cols(), rows_of<T>(logits), shaped);
    });
  });
}

const Provide provided[] = {{column_statistics, statistics},
                            {rescale_sums, rescale},
                            {row_losses, losses},
                            {weigh_losses, weigh},
                            {sum_losses, sum},
                            {softmax_gradient, gradient},
                            {softmax_losses_and_gradient, losses_and_gradient},
                            {scale_gradient, scale},
                            {shape_logits_kernel, shape_rows}};

}  // namespace
}  // namespace nemocube::cuda

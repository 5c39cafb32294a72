#include <cub/block/block_reduce.cuh>

#include <limits>

#include "core/cuda/block_size.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/cross_entropy/device_scale.cuh"
#include "ops/cross_entropy/logit_shape.cuh"

namespace nemocube::cuda {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Smaller {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a < b ? a : b; }
};

// A block has one row, of which thread t has packs t, t + threads, ... A thread reads until it has found m.
template <class T, bool aligned, int threads, class Shape>
__global__ void __launch_bounds__(threads)
    first_of_max_kernel(double* first, Rows<T> logits, const float* max, const std::int64_t* labels,
                        std::int64_t begin, std::int64_t cols, Shape shape) {
  using Reduce = cub::BlockReduce<std::int64_t, threads>;
  __shared__ typename Reduce::TempStorage storage;
  constexpr int N = whole_pack<T>;
  const std::int64_t row = blockIdx.x, end = labels[row] == ignored_label ? 0 : cols;
  const float most = max[row];
  std::int64_t found = cols;
  for (std::int64_t c = static_cast<int>(threadIdx.x) * N; c < end && found == cols; c += threads * N) {
    float z[N];
    Pack<T, N>::template load<aligned>(logits.row(row) + c, end - c).read(z);
    shape.template apply<aligned>(z, c, end - c);
#pragma unroll
    for (int i = N - 1; i >= 0; --i)
      if (c + i < end && z[i] == most) found = c + i;
  }
  found = Reduce(storage).Reduce(found, Smaller());
  if (threadIdx.x == 0) first[row] = found < cols ? -static_cast<double>(begin + found) : -infinity;
}

template <class T, bool aligned>
void first_of_rows(const Tensor& first, const Tensor& logits, const Tensor& max, const Tensor& labels,
                   std::int64_t begin, const LogitShape& shape) {
  visit_block_size(blocks_for(logits.cols(), whole_pack<T>), [&](auto threads) {
    visit_shape(shape, [&]<class Shape>(const Shape& shaped) {
      launch("cross_entropy first of max", first_of_max_kernel<T, aligned, threads, Shape>,
             blocks_for(logits.rows(), 1), threads, data_of<double>(first), rows_of<T>(logits),
             static_cast<const float*>(data_of<float>(max)),
             static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), begin, logits.cols(), shaped);
    });
  });
}

void first_of(const Tensor& first, const Tensor& logits, const RowStatistics& s, const Tensor& labels,
              std::int64_t begin, const LogitShape& shape) {
  visit_storage("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    if (logits.rows() == 0) return;
    if (rows_aligned(logits, shape.bias))
      first_of_rows<T, true>(first, logits, s.max, labels, begin, shape);
    else
      first_of_rows<T, false>(first, logits, s.max, labels, begin, shape);
  });
}

constexpr int row_threads = 128;

// A thread has a row. `first` is null where no gradient is wanted.
template <class D>
__global__ void __launch_bounds__(row_threads)
    z_loss_kernel(double* losses, Rows<D> d, std::int64_t cols, const float* max, Rows<float> sums,
                  const double* first, const std::int64_t* labels, std::int64_t begin, std::int64_t rows,
                  double weight, double cap, DeviceScale scale) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x;
  if (row >= rows || labels[row] == ignored_label) return;
  const double most = max[row];
  losses[row] += weight * most * most;
  if (!first) return;
  const double column = -first[row] - static_cast<double>(begin);
  if (!(column >= 0 && column < static_cast<double>(cols))) return;
  const auto v = static_cast<std::int64_t>(column);
  const float t = cap > 0 ? static_cast<float>(most / cap) : 0;
  const float softmax = 1 / sums.row(row)[0], of_label = v == labels[row] - begin ? 1 : 0;
  d.row(row)[v] = rounded<D>(static_cast<float>(scale.value(row)) *
                             (softmax - of_label + static_cast<float>(2 * weight * most)) * (1 - t * t));
}

void z_loss(const Tensor& losses, const Tensor& dlogits, const RowStatistics& s, const Tensor& first,
            const Tensor& labels, std::int64_t begin, const GradScale& scale, const LogitShape& shape) {
  if (losses.numel() == 0) return;
  visit_storage("cross_entropy", dlogits ? dlogits.dtype() : DType::f32, [&]<class D>(TypeTag<D>) {
    launch("cross_entropy z loss", z_loss_kernel<D>, blocks_for(losses.numel(), row_threads), row_threads,
           data_of<double>(losses), rows_of<D>(dlogits), dlogits ? dlogits.cols() : 0,
           static_cast<const float*>(data_of<float>(s.max)), rows_of<float>(s.sums),
           static_cast<const double*>(first ? data_of<double>(first) : nullptr),
           static_cast<const std::int64_t*>(data_of<std::int64_t>(labels)), begin, losses.numel(),
           shape.z_loss_weight, shape.soft_cap, on_device(scale));
  });
}

const Provide provided[] = {{first_of_max, first_of}, {add_z_loss, z_loss}};

}  // namespace
}  // namespace nemocube::cuda

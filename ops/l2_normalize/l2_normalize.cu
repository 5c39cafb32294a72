#include <cub/block/block_reduce.cuh>

#include "core/cuda/block_size.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/l2_normalize/l2_normalize_kernels.h"

namespace nemocube::cuda {
namespace {

// A block has one row, of which thread t has packs t, t + threads, ... It reads them twice, the second time
// from a cache.
template <class T, int threads, class Fn>
__device__ void for_own_packs(std::int64_t cols, Fn&& fn) {
  constexpr int N = whole_pack<T>;
  for (std::int64_t c = static_cast<int>(threadIdx.x) * N; c < cols; c += threads * N) fn(c);
}

template <bool aligned, class T>
__device__ void read_pack(float (&values)[whole_pack<T>], const T* row, std::int64_t c, std::int64_t cols) {
  Pack<T, whole_pack<T>>::template load<aligned>(row + c, cols - c).read(values);
}

struct AddSums {
  __device__ float2 operator()(const float2& a, const float2& b) const { return {a.x + b.x, a.y + b.y}; }
};

/// The sums of the block, for every thread.
template <int threads>
__device__ float2 block_sums(const float2& own) {
  using Reduce = cub::BlockReduce<float2, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ float2 of_row;
  const float2 all = Reduce(storage).Reduce(own, AddSums());
  if (threadIdx.x == 0) of_row = all;
  __syncthreads();
  return of_row;
}

// y may be x.
template <class T, bool aligned, int threads>
__global__ void __launch_bounds__(threads)
    l2_normalize_forward_kernel(Rows<T> y, Rows<T> x, std::int64_t cols, float eps) {
  constexpr int N = whole_pack<T>;
  const T* from = x.row(blockIdx.x);
  T* to = y.row(blockIdx.x);
  float2 sums{};
  for_own_packs<T, threads>(cols, [&](std::int64_t c) {
    float v[N];
    read_pack<aligned>(v, from, c, cols);
#pragma unroll
    for (int i = 0; i < N; ++i) sums.x += v[i] * v[i];
  });
  const float norm = sqrtf(block_sums<threads>(sums).x), inverse = 1 / (norm < eps ? eps : norm);
  for_own_packs<T, threads>(cols, [&](std::int64_t c) {
    float v[N];
    read_pack<aligned>(v, from, c, cols);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= inverse;
    Pack<T, N>::of(v).template store<aligned>(to + c, cols - c);
  });
}

/// Stores values of N columns from c on, in accesses of up to 16 bytes.
template <bool aligned, int N, class D>
__device__ void store_columns(D* row, std::int64_t c, std::int64_t cols, bool add, const float (&values)[N]) {
  constexpr int M = N < whole_pack<D> ? N : whole_pack<D>;
#pragma unroll
  for (int first = 0; first < N; first += M) {
    const std::int64_t at = c + first;
    if (at >= cols) return;
    float part[M] = {};
    if (add) Pack<D, M>::template load<aligned>(row + at, cols - at).read(part);
#pragma unroll
    for (int i = 0; i < M; ++i) part[i] += values[first + i];
    Pack<D, M>::of(part).template store<aligned>(row + at, cols - at);
  }
}

template <class D, class T, bool aligned, int threads>
__global__ void __launch_bounds__(threads)
    l2_normalize_backward_kernel(Rows<D> dx, bool add, Rows<T> dy, Rows<T> x, std::int64_t cols, float eps) {
  constexpr int N = whole_pack<T>;
  const T *from = x.row(blockIdx.x), *back = dy.row(blockIdx.x);
  float2 sums{};
  for_own_packs<T, threads>(cols, [&](std::int64_t c) {
    float v[N], g[N];
    read_pack<aligned>(v, from, c, cols);
    read_pack<aligned>(g, back, c, cols);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums.x += v[i] * v[i];
      sums.y += v[i] * g[i];
    }
  });
  sums = block_sums<threads>(sums);
  const float norm = sqrtf(sums.x);
  const bool constant = norm < eps;  // of a NaN: no
  const float inverse = 1 / (constant ? eps : norm), along = constant ? 0 : sums.y * (inverse * inverse);
  for_own_packs<T, threads>(cols, [&](std::int64_t c) {
    float v[N], g[N];
    read_pack<aligned>(v, from, c, cols);
    read_pack<aligned>(g, back, c, cols);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = (g[i] - v[i] * along) * inverse;
    store_columns<aligned>(dx.row(blockIdx.x), c, cols, add, g);
  });
}

/// Calls fn(whether rows are aligned, threads of a block), each as a constant.
template <class T, class Fn>
void visit_rows(std::int64_t cols, bool aligned, Fn&& fn) {
  visit_block_size(blocks_for(cols, whole_pack<T>), [&](auto threads) {
    aligned ? fn(std::true_type(), threads) : fn(std::false_type(), threads);
  });
}

void forward(const Tensor& y, const Tensor& x, double eps) {
  visit_storage("l2_normalize", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    visit_rows<T>(x.cols(), rows_aligned(y, x), [&](auto aligned, auto threads) {
      launch("l2_normalize forward", l2_normalize_forward_kernel<T, aligned, threads>,
             blocks_for(x.rows(), 1), threads, rows_of<T>(y), rows_of<T>(x), x.cols(),
             static_cast<float>(eps));
    });
  });
}

template <class D, class T>
void backward_into(const Output& dx, const Tensor& dy, const Tensor& x, double eps) {
  visit_rows<T>(x.cols(), rows_aligned(dx.to, dy, x), [&](auto aligned, auto threads) {
    launch("l2_normalize backward", l2_normalize_backward_kernel<D, T, aligned, threads>,
           blocks_for(x.rows(), 1), threads, rows_of<D>(dx.to), dx.how == Into::add, rows_of<T>(dy),
           rows_of<T>(x), x.cols(), static_cast<float>(eps));
  });
}

void backward(const Output& dx, const Tensor& dy, const Tensor& x, double eps) {
  visit_storage("l2_normalize", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    dx.to.dtype() == x.dtype() ? backward_into<T, T>(dx, dy, x, eps)
                               : backward_into<float, T>(dx, dy, x, eps);
  });
}

const Provide provided[] = {{l2_normalize_forward, forward}, {l2_normalize_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

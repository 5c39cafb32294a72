#include "core/cuda/elementwise.cuh"
#include "ops/relu2/relu2_kernels.h"

namespace nemocube::cuda {
namespace {

// y may be x.
template <class T, int N>
__global__ void relu2_forward_kernel(RowBlocks grid, Rows<T> y, Rows<T> x) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float positive = v[i] <= 0 ? 0 : v[i];  // not fmaxf, which would turn a NaN into 0
      v[i] = positive * positive;
    }
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

// dx may be dy.
template <class T, int N>
__global__ void relu2_backward_kernel(RowBlocks grid, Rows<T> dx, Rows<T> dy, Rows<T> y) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N], g[N];
    Pack<T, N>::load(y.row(r) + c, count).read(v);
    Pack<T, N>::load(dy.row(r) + c, count).read(g);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] *= 2 * to_float(rounded<T>(sqrtf(v[i])));  // rounded to T: exactly x
    Pack<T, N>::of(g).store(dx.row(r) + c, count);
  });
}

template <class T, int N>
void forward_packs(const Tensor& y, const Tensor& x) {
  launch_elementwise<N>("relu2 forward", relu2_forward_kernel<T, N>, x.rows(), x.cols(), rows_of<T>(y),
                        rows_of<T>(x));
}

void forward(const Tensor& any_y, const Tensor& any_x) {
  const bool one_row = all_contiguous(any_y, any_x);
  const Tensor y = as_one_row(any_y, one_row), x = as_one_row(any_x, one_row);
  visit_storage("relu2", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    rows_aligned(y, x) ? forward_packs<T, whole_pack<T>>(y, x) : forward_packs<T, 1>(y, x);
  });
}

template <class T, int N>
void backward_packs(const Tensor& dx, const Tensor& dy, const Tensor& y) {
  launch_elementwise<N>("relu2 backward", relu2_backward_kernel<T, N>, y.rows(), y.cols(), rows_of<T>(dx),
                        rows_of<T>(dy), rows_of<T>(y));
}

void backward(const Tensor& any_dx, const Tensor& any_dy, const Tensor& any_y) {
  const bool one_row = all_contiguous(any_dx, any_dy, any_y);
  const Tensor dx = as_one_row(any_dx, one_row), dy = as_one_row(any_dy, one_row),
               y = as_one_row(any_y, one_row);
  visit_storage("relu2", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (y.numel() == 0) return;
    rows_aligned(dx, dy, y) ? backward_packs<T, whole_pack<T>>(dx, dy, y) : backward_packs<T, 1>(dx, dy, y);
  });
}

const Provide provided[] = {{relu2_forward, forward}, {relu2_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

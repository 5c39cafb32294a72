#include "core/cuda/elementwise.cuh"
#include "ops/gated_activation/gate_value.h"
#include "ops/gelu/gelu_kernels.h"
#include "ops/math.cuh"

namespace nemocube::cuda {
namespace {

constexpr GateActivation phi = GateActivation::gelu_tanh;

// y may be x.
template <class T, int N>
__global__ void gelu_forward_kernel(RowBlocks grid, Rows<T> y, Rows<T> x) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = gate_value<phi>(v[i], sigmoid(gate_logit<phi>(v[i])));
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

// dx may be dy or x.
template <class T, int N>
__global__ void gelu_backward_kernel(RowBlocks grid, Rows<T> dx, Rows<T> dy, Rows<T> x) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N], g[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
    Pack<T, N>::load(dy.row(r) + c, count).read(g);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] *= gate_slope<phi>(v[i], sigmoid(gate_logit<phi>(v[i])));
    Pack<T, N>::of(g).store(dx.row(r) + c, count);
  });
}

template <class T, int N>
void forward_packs(const Tensor& y, const Tensor& x) {
  launch_elementwise<N>("gelu forward", gelu_forward_kernel<T, N>, x.rows(), x.cols(), rows_of<T>(y),
                        rows_of<T>(x));
}

void forward(const Tensor& any_y, const Tensor& any_x) {
  const bool one_row = all_contiguous(any_y, any_x);
  const Tensor y = as_one_row(any_y, one_row), x = as_one_row(any_x, one_row);
  visit_storage("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    rows_aligned(y, x) ? forward_packs<T, whole_pack<T>>(y, x) : forward_packs<T, 1>(y, x);
  });
}

template <class T, int N>
void backward_packs(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  launch_elementwise<N>("gelu backward", gelu_backward_kernel<T, N>, x.rows(), x.cols(), rows_of<T>(dx),
                        rows_of<T>(dy), rows_of<T>(x));
}

void backward(const Tensor& any_dx, const Tensor& any_dy, const Tensor& any_x) {
  const bool one_row = all_contiguous(any_dx, any_dy, any_x);
  const Tensor dx = as_one_row(any_dx, one_row), dy = as_one_row(any_dy, one_row),
               x = as_one_row(any_x, one_row);
  visit_storage("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    rows_aligned(dx, dy, x) ? backward_packs<T, whole_pack<T>>(dx, dy, x) : backward_packs<T, 1>(dx, dy, x);
  });
}

const Provide provided[] = {{gelu_forward, forward}, {gelu_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

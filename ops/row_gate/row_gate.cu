#include "core/cuda/block_size.cuh"
#include "core/cuda/block_sum.cuh"
#include "core/cuda/elementwise.cuh"
#include "ops/math.cuh"
#include "ops/row_gate/row_gate_kernels.h"

namespace nemocube::cuda {
namespace {

template <class T>
__device__ float gate_of(const Rows<T>& gate, std::int64_t row) {
  return sigmoid(to_float(*gate.row(row)));
}

// y may be x.
template <class T, int N>
__global__ void row_gate_forward_kernel(RowBlocks grid, Rows<T> y, Rows<T> x, Rows<T> gate) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    const Pack<T, N> pack = Pack<T, N>::load(x.row(r) + c, count);
    const float s = gate_of(gate, r);
    pack.read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= s;
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

/// Packs of each operand in registers.
constexpr int held_packs = 2;

// A block has one row. dx may be null, and may be dy or x: a thread reads its packs before it writes them.
template <class T, bool aligned, int threads>
__global__ void __launch_bounds__(threads)
    row_gate_backward_kernel(Rows<T> dx, Rows<T> dgate, Rows<T> dy, Rows<T> x, Rows<T> gate,
                             std::int64_t cols) {
  constexpr int N = whole_pack<T>, step = threads * N;
  using Elements = Pack<T, N>;
  const std::int64_t row = blockIdx.x;
  const T *from = x.row(row), *back = dy.row(row);
  const float s = gate_of(gate, row);
  float sum = 0;
  for (std::int64_t first = static_cast<int>(threadIdx.x) * N; first < cols; first += held_packs * step) {
    Elements xs[held_packs], dys[held_packs];
#pragma unroll
    for (int k = 0; k < held_packs; ++k)
      if (const std::int64_t c = first + k * step; c < cols) {
        xs[k] = Elements::template load<aligned>(from + c, cols - c);
        dys[k] = Elements::template load<aligned>(back + c, cols - c);
      }
#pragma unroll
    for (int k = 0; k < held_packs; ++k)
      if (const std::int64_t c = first + k * step; c < cols) {
        float v[N], g[N];
        xs[k].read(v);
        dys[k].read(g);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sum += g[i] * v[i];
          g[i] *= s;
        }
        if (dx) Elements::of(g).template store<aligned>(dx.row(row) + c, cols - c);
      }
  }
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) *dgate.row(row) = rounded<T>(s * (1 - s) * sum);
}

template <class T, int N>
void forward_packs(const Tensor& y, const Tensor& x, const Tensor& gate) {
  launch_elementwise<N>("row_gate forward", row_gate_forward_kernel<T, N>, x.rows(), x.cols(), rows_of<T>(y),
                        rows_of<T>(x), rows_of<T>(gate));
}

void forward(const Tensor& y, const Tensor& x, const Tensor& gate) {
  visit_storage("row_gate", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.numel() == 0) return;
    rows_aligned(y, x) ? forward_packs<T, whole_pack<T>>(y, x, gate) : forward_packs<T, 1>(y, x, gate);
  });
}

void backward(const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x, const Tensor& gate) {
  visit_storage("row_gate", x.dtype(), [&]<class T>(TypeTag<T>) {
    if (x.rows() == 0) return;
    const bool aligned = rows_aligned(dx, dy, x);
    visit_block_size(blocks_for(x.cols(), held_packs * whole_pack<T>), [&](auto threads) {
      const auto kernel =
          aligned ? row_gate_backward_kernel<T, true, threads> : row_gate_backward_kernel<T, false, threads>;
      launch("row_gate backward", kernel, blocks_for(x.rows(), 1), threads, rows_of<T>(dx), rows_of<T>(dgate),
             rows_of<T>(dy), rows_of<T>(x), rows_of<T>(gate), x.cols());
    });
  });
}

const Provide provided[] = {{row_gate_forward, forward}, {row_gate_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

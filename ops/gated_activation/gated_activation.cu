#include "core/cuda/elementwise.cuh"
#include "ops/gated_activation/gate_value.h"
#include "ops/gated_activation/gated_activation_kernels.h"
#include "ops/math.cuh"

namespace nemocube::cuda {
namespace {

// y may be gate or up.
template <GateActivation phi, class T, int N>
__global__ void gated_activation_forward_kernel(RowBlocks grid, Rows<T> y, Rows<T> gate, Rows<T> up) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float g[N], u[N];
    Pack<T, N>::load(gate.row(r) + c, count).read(g);
    Pack<T, N>::load(up.row(r) + c, count).read(u);
#pragma unroll
    for (int i = 0; i < N; ++i) u[i] *= gate_value<phi>(g[i], sigmoid(gate_logit<phi>(g[i])));
    Pack<T, N>::of(u).store(y.row(r) + c, count);
  });
}

// dgate and dup may be null. Each may be any one of dy, gate and up: all is read before anything is written.
template <GateActivation phi, class T, int N>
__global__ void gated_activation_backward_kernel(RowBlocks grid, Rows<T> dgate, Rows<T> dup, Rows<T> dy,
                                                 Rows<T> gate, Rows<T> up) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float d[N], g[N], u[N];
    Pack<T, N>::load(dy.row(r) + c, count).read(d);
    Pack<T, N>::load(gate.row(r) + c, count).read(g);
    Pack<T, N>::load(up.row(r) + c, count).read(u);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float s = sigmoid(gate_logit<phi>(g[i]));
      u[i] *= d[i] * gate_slope<phi>(g[i], s);
      d[i] *= gate_value<phi>(g[i], s);
    }
    if (dgate) Pack<T, N>::of(u).store(dgate.row(r) + c, count);
    if (dup) Pack<T, N>::of(d).store(dup.row(r) + c, count);
  });
}

/// Calls fn(phi, element type, elements of a pack), each as a constant.
template <class Fn>
void visit_packs(DType dtype, GateActivation phi, bool aligned, Fn&& fn) {
  visit_storage("gated_activation", dtype, [&]<class T>(TypeTag<T> type) {
    visit_gate(phi, [&](auto chosen) {
      if (aligned)
        fn(chosen, type, std::integral_constant<int, whole_pack<T>>());
      else
        fn(chosen, type, std::integral_constant<int, 1>());
    });
  });
}

void forward(const Tensor& any_y, const Tensor& any_gate, const Tensor& any_up, GateActivation phi) {
  const bool one_row = all_contiguous(any_y, any_gate, any_up);
  const Tensor y = as_one_row(any_y, one_row), gate = as_one_row(any_gate, one_row),
               up = as_one_row(any_up, one_row);
  visit_packs(gate.dtype(), phi, rows_aligned(y, gate, up), [&]<class T>(auto chosen, TypeTag<T>, auto pack) {
    if (gate.numel() == 0) return;
    launch_elementwise<pack>("gated_activation forward", gated_activation_forward_kernel<chosen, T, pack>,
                             gate.rows(), gate.cols(), rows_of<T>(y), rows_of<T>(gate), rows_of<T>(up));
  });
}

void backward(const Tensor& any_dgate, const Tensor& any_dup, const Tensor& any_dy, const Tensor& any_gate,
              const Tensor& any_up, GateActivation phi) {
  const bool one_row = all_contiguous(any_dgate, any_dup, any_dy, any_gate, any_up);
  const auto wanted = [&](const Tensor& t) { return t ? as_one_row(t, one_row) : t; };
  const Tensor dgate = wanted(any_dgate), dup = wanted(any_dup), dy = as_one_row(any_dy, one_row),
               gate = as_one_row(any_gate, one_row), up = as_one_row(any_up, one_row);
  visit_packs(gate.dtype(), phi, rows_aligned(dgate, dup, dy, gate, up),
              [&]<class T>(auto chosen, TypeTag<T>, auto pack) {
                if (gate.numel() == 0) return;
                launch_elementwise<pack>("gated_activation backward",
                                         gated_activation_backward_kernel<chosen, T, pack>, gate.rows(),
                                         gate.cols(), rows_of<T>(dgate), rows_of<T>(dup), rows_of<T>(dy),
                                         rows_of<T>(gate), rows_of<T>(up));
              });
}

const Provide provided[] = {{gated_activation_forward, forward}, {gated_activation_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda

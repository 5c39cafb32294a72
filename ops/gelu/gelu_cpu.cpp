#include "ops/gated_activation/gate_value.h"
#include "ops/gelu/gelu_kernels.h"
#include "ops/ivdep.h"
#include "ops/math.h"
#include "ops/pieces_cpu.h"

namespace nemocube::cpu {

void gelu_forward(const Tensor& y, const Tensor& x) {
  visit_float("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    if (x.numel() == 0) return;
    for_pieces(x.rows(), x.cols(), x.contiguous() && y.contiguous(), [&](auto r, auto first, auto last) {
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) {
        constexpr GateActivation phi = GateActivation::gelu_tanh;
        const A v = static_cast<A>(from[c]);
        to[c] = static_cast<T>(gate_value<phi>(v, sigmoid(gate_logit<phi>(v))));
      }
    });
  });
}

void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  visit_float("gelu", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    if (x.numel() == 0) return;
    const bool flat = dx.contiguous() && dy.contiguous() && x.contiguous();
    for_pieces(x.rows(), x.cols(), flat, [&](auto r, auto first, auto last) {
      const T *g = dy.row<T>(r), *from = x.row<T>(r);
      T* to = dx.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) {
        constexpr GateActivation phi = GateActivation::gelu_tanh;
        const A v = static_cast<A>(from[c]), s = sigmoid(gate_logit<phi>(v));
        to[c] = static_cast<T>(static_cast<A>(g[c]) * gate_slope<phi>(v, s));
      }
    });
  });
}

}  // namespace nemocube::cpu

#include "ops/ivdep.h"
#include "ops/math.h"
#include "ops/pieces_cpu.h"
#include "ops/row_gate/row_gate_kernels.h"
#include "ops/row_norm_cpu.h"

namespace nemocube::cpu {

void row_gate_forward(const Tensor& y, const Tensor& x, const Tensor& gate) {
  visit_float("row_gate", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_pieces(x.rows(), x.cols(), false, [&](auto r, auto first, auto last) {
      const A s = sigmoid(static_cast<A>(*gate.row<T>(r)));
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) to[c] = static_cast<T>(static_cast<A>(from[c]) * s);
    });
  });
}

void row_gate_backward(const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate) {
  visit_float("row_gate", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    const std::int64_t n = x.cols();
    parallel_for(x.rows(), row_norm::row_grain(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const A s = sigmoid(static_cast<A>(*gate.row<T>(r)));
        const T *from = x.row<T>(r), *back = dy.row<T>(r);
        const A sum = row_norm::lane_sum<A>(
            n, [=](std::int64_t c) { return static_cast<A>(back[c]) * static_cast<A>(from[c]); });
        *dgate.row<T>(r) = static_cast<T>(s * (A(1) - s) * sum);
        if (!dx) continue;
        T* to = dx.row<T>(r);
        NEMOCUBE_IVDEP
        for (std::int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(static_cast<A>(back[c]) * s);
      }
    });
  });
}

}  // namespace nemocube::cpu

#include <cmath>

#include "ops/ivdep.h"
#include "ops/pieces_cpu.h"
#include "ops/relu2/relu2_kernels.h"

namespace nemocube::cpu {
namespace {

// Not std::max, which would turn a NaN into 0.
template <class A>
A positive_part(A v) {
  return v <= A(0) ? A(0) : v;
}

}  // namespace

void relu2_forward(const Tensor& y, const Tensor& x) {
  visit_float("relu2", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    if (x.numel() == 0) return;
    for_pieces(x.rows(), x.cols(), x.contiguous() && y.contiguous(), [&](auto r, auto first, auto last) {
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) {
        const A v = positive_part(static_cast<A>(from[c]));
        to[c] = static_cast<T>(v * v);
      }
    });
  });
}

void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) {
  visit_float("relu2", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    if (y.numel() == 0) return;
    const bool flat = y.contiguous() && dx.contiguous() && dy.contiguous();
    for_pieces(y.rows(), y.cols(), flat, [&](auto r, auto first, auto last) {
      const T* __restrict value = y.row<T>(r);
      const T* g = dy.row<T>(r);
      T* to = dx.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) {
        const T x = static_cast<T>(std::sqrt(static_cast<A>(value[c])));  // rounded to T: exactly x
        to[c] = static_cast<T>(A(2) * static_cast<A>(x) * static_cast<A>(g[c]));
      }
    });
  });
}

}  // namespace nemocube::cpu

#include <cmath>

#include "core/parallel_for.h"
#include "ops/l2_normalize/l2_normalize_kernels.h"
#include "ops/row_norm_cpu.h"

namespace nemocube::cpu {
namespace {

using row_norm::lane_sum;

/// Calls fn(row) for every row.
template <class Fn>
void for_rows(const Tensor& x, Fn&& fn) {
  if (x.numel() == 0) return;
  parallel_for(x.rows(), row_norm::row_grain(x.cols()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) fn(r);
  });
}

template <class A, class T>
A norm_of(const T* x, std::int64_t n) {
  return std::sqrt(lane_sum<A>(n, [x](std::int64_t c) {
    const A v = static_cast<A>(x[c]);
    return v * v;
  }));
}

template <class D, class T>
void backward_row(D* to, Into how, const T* dy, const T* x, std::int64_t n, acc_t<T> eps) {
  using A = acc_t<T>;
  const A norm = norm_of<A>(x, n);
  const bool constant = norm < eps;  // of a NaN: no
  const A inverse = A(1) / (constant ? eps : norm);
  A along = 0;
  if (!constant) {
    along = lane_sum<A>(n, [=](std::int64_t c) { return static_cast<A>(x[c]) * static_cast<A>(dy[c]); });
    along *= inverse * inverse;
  }
  for (std::int64_t c = 0; c < n; ++c) {
    const A v = (static_cast<A>(dy[c]) - static_cast<A>(x[c]) * along) * inverse;
    to[c] = static_cast<D>(how == Into::add ? static_cast<A>(to[c]) + v : v);
  }
}

}  // namespace

void l2_normalize_forward(const Tensor& y, const Tensor& x, double eps) {
  visit_float("l2_normalize", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    const std::int64_t n = x.cols();
    for_rows(x, [&](std::int64_t r) {
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      const A norm = norm_of<A>(from, n), least = static_cast<A>(eps);
      const A inverse = A(1) / (norm < least ? least : norm);
      for (std::int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(static_cast<A>(from[c]) * inverse);
    });
  });
}

void l2_normalize_backward(const Output& dx, const Tensor& dy, const Tensor& x, double eps) {
  visit_float("l2_normalize", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(x, [&](std::int64_t r) {
      const auto run = [&](auto* to) {
        backward_row(to, dx.how, dy.row<T>(r), x.row<T>(r), x.cols(), static_cast<A>(eps));
      };
      if (dx.to.dtype() == x.dtype())
        run(dx.to.row<T>(r));
      else
        run(dx.to.row<A>(r));
    });
  });
}

}  // namespace nemocube::cpu

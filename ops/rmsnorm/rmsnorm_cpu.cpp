#include <algorithm>
#include <cmath>

#include "ops/ivdep.h"
#include "ops/reduce.h"
#include "ops/reduce_kernels.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace nemocube::cpu {
namespace {

// Number of independent partial sums. With these the compiler keeps the order of addition and still
// vectorises.
constexpr std::int64_t lanes = 32;

/// Sum over c of term(c), in an order that depends on n alone.
template <class A, class Term>
inline A lane_sum(std::int64_t n, Term&& term) {
  A part[lanes] = {};
  std::int64_t c = 0;
  for (; c + lanes <= n; c += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) part[l] += term(c + l);
  for (std::int64_t l = 0; c + l < n; ++l) part[l] += term(c + l);
  for (std::int64_t half = lanes / 2; half >= 1; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) part[l] += part[l + half];
  return part[0];
}

/// Calls fn(scale) with the function from an element of the weight to the scale that it stands for: the element itself
/// without an offset.
template <class A, class Fn>
void visit_scale(double offset, Fn&& fn) {
  if (offset == 0)
    fn([](auto w) { return static_cast<A>(w); });
  else
    fn([plus = static_cast<A>(offset)](auto w) { return plus + static_cast<A>(w); });
}

std::int64_t row_grain(std::int64_t cols) { return 1 + 16384 / (cols + 1); }

template <class T>
void forward_rows(const Tensor& y, const Tensor& inv_rms, const Tensor& sum, const Tensor& x,
                  const Tensor& residual, const Tensor& weight, double eps, const auto& scale_of) {
  using A = acc_t<T>;
  const std::int64_t cols = x.cols();
  const T* __restrict w = weight.data<T>();
  A* inv = inv_rms.data<A>();
  parallel_for(x.rows(), row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* row = x.row<T>(r);
      if (residual) {
        const T* __restrict other = residual.row<T>(r);
        T* __restrict to = sum.row<T>(r);
        for (std::int64_t c = 0; c < cols; ++c)
          to[c] = static_cast<T>(static_cast<A>(row[c]) + static_cast<A>(other[c]));
        row = to;
      }
      const A squares = lane_sum<A>(cols, [row](std::int64_t c) {
        const A v = static_cast<A>(row[c]);
        return v * v;
      });
      const A scale = A(1) / std::sqrt(squares / static_cast<A>(cols) + static_cast<A>(eps));
      inv[r] = scale;
      T* __restrict to = y.row<T>(r);
      for (std::int64_t c = 0; c < cols; ++c)
        to[c] = static_cast<T>(static_cast<A>(row[c]) * scale * scale_of(w[c]));
    }
  });
}

/// One row: dx (unless null) and the row's part of dw (unless null).
template <class T, class A>
void backward_row(T* dx, A* __restrict dw, const T* dy, const T* extra, const T* __restrict x,
                  const T* __restrict w, A scale, std::int64_t cols, const auto& scale_of) {
  if (dx) {
    const A dot = lane_sum<A>(
        cols, [=](std::int64_t c) { return scale_of(w[c]) * static_cast<A>(dy[c]) * static_cast<A>(x[c]); });
    const A back = scale * scale * scale * dot / static_cast<A>(cols);
    const auto store = [=](std::int64_t c, A g, A more) {
      dx[c] = static_cast<T>(scale_of(w[c]) * g * scale - static_cast<A>(x[c]) * back + more);
    };
    // dy or extra may be the same memory as dx, so dw is summed before dx is written.
    if (dw)
      for (std::int64_t c = 0; c < cols; ++c) dw[c] += static_cast<A>(dy[c]) * static_cast<A>(x[c]) * scale;
    if (extra) {
      NEMOCUBE_IVDEP
      for (std::int64_t c = 0; c < cols; ++c) store(c, static_cast<A>(dy[c]), static_cast<A>(extra[c]));
    } else {
      NEMOCUBE_IVDEP
      for (std::int64_t c = 0; c < cols; ++c) store(c, static_cast<A>(dy[c]), A(0));
    }
  } else if (dw) {
    for (std::int64_t c = 0; c < cols; ++c) dw[c] += static_cast<A>(dy[c]) * static_cast<A>(x[c]) * scale;
  }
}

template <class T>
void backward_rows(const Tensor& dx, const Tensor& partial, const Tensor& dy, const Tensor& extra,
                   const Tensor& x, const Tensor& weight, const Tensor& inv_rms, const auto& scale_of) {
  using A = acc_t<T>;
  const T* w = weight.data<T>();
  const A* inv = inv_rms.data<A>();
  for_segments(x.rows(), [&](std::int64_t s, std::int64_t first, std::int64_t last) {
    A* dw = partial ? partial.row<A>(s) : nullptr;
    if (dw) std::fill_n(dw, x.cols(), A(0));
    for (std::int64_t r = first; r < last; ++r)
      backward_row<T, A>(dx ? dx.row<T>(r) : nullptr, dw, dy.row<T>(r), extra ? extra.row<T>(r) : nullptr,
                         x.row<T>(r), w, inv[r], x.cols(), scale_of);
  });
}

}  // namespace

void rmsnorm_forward(const Tensor& y, const Tensor& inv_rms, const Tensor& sum, const Tensor& x,
                     const Tensor& residual, const Tensor& weight, double eps, double offset) {
  if (x.rows() == 0) return;
  visit_float("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
    visit_scale<acc_t<T>>(offset, [&](const auto& scale_of) {
      forward_rows<T>(y, inv_rms, sum, x, residual, weight, eps, scale_of);
    });
  });
}

void rmsnorm_backward(const Tensor& dx, const Output& dw, const Tensor& dy, const Tensor& extra,
                      const Tensor& x, const Tensor& weight, const Tensor& inv_rms, double offset) {
  Tensor partial;
  if (dw.to)
    partial = Tensor::empty({segments_of(x.rows()), x.cols()}, accumulate_dtype(x.dtype()), Device::cpu);
  if (x.rows() > 0)
    visit_float("rmsnorm", x.dtype(), [&]<class T>(TypeTag<T>) {
      visit_scale<acc_t<T>>(offset, [&](const auto& scale_of) {
        backward_rows<T>(dx, partial, dy, extra, x, weight, inv_rms, scale_of);
      });
    });
  if (dw.to) cpu::sum_segments({{dw, partial}});
}

}  // namespace nemocube::cpu

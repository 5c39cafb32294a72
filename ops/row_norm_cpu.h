#pragma once
#include <algorithm>
#include <cmath>

#include "ops/ivdep.h"
#include "ops/reduce.h"
#include "ops/reduce_kernels.h"
#include "ops/row_norm_kernels.h"

/// Kernels of the norms of rows for the CPU.
namespace nemocube::cpu::row_norm {

// Number of independent partial sums. With so many the compiler keeps
// the order of addition and still vectorises.
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

inline std::int64_t row_grain(std::int64_t cols) { return 1 + 16384 / (cols + 1); }

/// The result of a norm of this form for an element of x and one of the weight.
template <NormForm form, class A>
struct Elements {
  A mean, offset;
  template <class T>
  A centred(T x) const {
    if constexpr (form == NormForm::centred) return static_cast<A>(x) - mean;
    return static_cast<A>(x);
  }
  /// Of column c. The unweighted form does not read `w`, which is null there.
  template <class T>
  A scale(const T* w, std::int64_t c) const {
    if constexpr (form == NormForm::unweighted)
      return A(1);
    else if constexpr (form == NormForm::offset)
      return offset + static_cast<A>(w[c]);
    else
      return static_cast<A>(w[c]);
  }
};

template <NormForm form, class T>
void forward_rows(const NormForward& o) {
  using A = acc_t<T>;
  const std::int64_t cols = o.x.cols();
  const T* __restrict w = o.weight ? o.weight.data<T>() : nullptr;
  const T* __restrict b = o.bias ? o.bias.data<T>() : nullptr;
  A* inv = o.inv.data<A>();
  A* means = o.mean ? o.mean.data<A>() : nullptr;
  parallel_for(o.x.rows(), row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* row = o.x.row<T>(r);
      if (o.residual) {
        const T* __restrict other = o.residual.row<T>(r);
        T* __restrict to = o.sum.row<T>(r);
        for (std::int64_t c = 0; c < cols; ++c)
          to[c] = static_cast<T>(static_cast<A>(row[c]) + static_cast<A>(other[c]));
        row = to;
      }
      Elements<form, A> of{0, static_cast<A>(o.offset)};
      if constexpr (form == NormForm::centred) {
        of.mean = lane_sum<A>(cols, [row](std::int64_t c) { return static_cast<A>(row[c]); }) /
                  static_cast<A>(cols);
        means[r] = of.mean;
      }
      const A squares = lane_sum<A>(cols, [row, of](std::int64_t c) {
        const A v = of.centred(row[c]);
        return v * v;
      });
      const A scale = A(1) / std::sqrt(squares / static_cast<A>(cols) + static_cast<A>(o.eps));
      inv[r] = scale;
      T* __restrict to = o.y.row<T>(r);
      if (b)
        for (std::int64_t c = 0; c < cols; ++c)
          to[c] = static_cast<T>(of.centred(row[c]) * scale * of.scale(w, c) + static_cast<A>(b[c]));
      else
        for (std::int64_t c = 0; c < cols; ++c)
          to[c] = static_cast<T>(of.centred(row[c]) * scale * of.scale(w, c));
    }
  });
}

/// One row: dx (unless null) and the row's parts of dw and db (unless null).
template <NormForm form, class T, class A>
void backward_row(T* dx, A* __restrict dw, A* __restrict db, const T* dy, const T* extra,
                  const T* __restrict x, const T* __restrict w, const Elements<form, A> of, A scale,
                  std::int64_t cols) {
  // dy or extra may be the same memory as dx, so dw and db are summed before dx is written.
  const auto add_to_dw = [=] {
    if (dw)
      for (std::int64_t c = 0; c < cols; ++c) dw[c] += static_cast<A>(dy[c]) * of.centred(x[c]) * scale;
    if (db)
      for (std::int64_t c = 0; c < cols; ++c) db[c] += static_cast<A>(dy[c]);
  };
  if (!dx) return add_to_dw();
  const A dot = lane_sum<A>(
      cols, [=](std::int64_t c) { return of.scale(w, c) * static_cast<A>(dy[c]) * of.centred(x[c]); });
  const A back = scale * scale * scale * dot / static_cast<A>(cols);
  A shift = 0;  // scale * the mean of u, in the centred form
  if constexpr (form == NormForm::centred)
    shift = scale *
            lane_sum<A>(cols, [=](std::int64_t c) { return of.scale(w, c) * static_cast<A>(dy[c]); }) /
            static_cast<A>(cols);
  const auto store = [=](std::int64_t c, A g, A more) {
    A own = of.scale(w, c) * g * scale - of.centred(x[c]) * back;
    if constexpr (form == NormForm::centred) own -= shift;
    dx[c] = static_cast<T>(own + more);
  };
  add_to_dw();
  if (extra) {
    NEMOCUBE_IVDEP
    for (std::int64_t c = 0; c < cols; ++c) store(c, static_cast<A>(dy[c]), static_cast<A>(extra[c]));
  } else {
    NEMOCUBE_IVDEP
    for (std::int64_t c = 0; c < cols; ++c) store(c, static_cast<A>(dy[c]), A(0));
  }
}

template <NormForm form, class T>
void backward_rows(const NormBackward& o, const Tensor& dw_sums, const Tensor& db_sums) {
  using A = acc_t<T>;
  const std::int64_t cols = o.x.cols();
  const T* w = o.weight ? o.weight.data<T>() : nullptr;
  const A* inv = o.inv.data<A>();
  const A* means = o.mean ? o.mean.data<A>() : nullptr;
  for_segments(o.x.rows(), [&](std::int64_t s, std::int64_t first, std::int64_t last) {
    const auto zeros = [&](const Tensor& sums) -> A* {
      return sums ? std::fill_n(sums.row<A>(s), cols, A(0)) - cols : nullptr;
    };
    A *dw = zeros(dw_sums), *db = zeros(db_sums);
    for (std::int64_t r = first; r < last; ++r) {
      const Elements<form, A> of{means ? means[r] : A(0), static_cast<A>(o.offset)};
      backward_row<form, T, A>(o.dx ? o.dx.row<T>(r) : nullptr, dw, db, o.dy.row<T>(r),
                               o.extra ? o.extra.row<T>(r) : nullptr, o.x.row<T>(r), w, of, inv[r], cols);
    }
  });
}

template <NormForm form>
void forward(const char* op, const NormForward& o) {
  if (o.x.rows() == 0) return;
  visit_float(op, o.x.dtype(), [&]<class T>(TypeTag<T>) { forward_rows<form, T>(o); });
}

template <NormForm form>
void backward(const char* op, const NormBackward& o) {
  const auto sums_for = [&](const Output& out) {
    return out.to ? Tensor::empty({segments_of(o.x.rows()), o.x.cols()}, accumulate_dtype(o.x.dtype()),
                                  Device::cpu)
                  : Tensor();
  };
  const Tensor dw = sums_for(o.dw), db = sums_for(o.db);
  if (o.x.rows() > 0)
    visit_float(op, o.x.dtype(), [&]<class T>(TypeTag<T>) { backward_rows<form, T>(o, dw, db); });
  if (dw) cpu::sum_segments({{o.dw, dw}});
  if (db) cpu::sum_segments({{o.db, db}});
}

}  // namespace nemocube::cpu::row_norm

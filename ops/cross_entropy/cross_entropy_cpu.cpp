#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/parallel_for.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/ivdep.h"
#include "ops/math.h"

namespace nemocube::cpu {
namespace {

template <class T>
acc_t<T> largest(const T* z, std::int64_t n) {
  using A = acc_t<T>;
  A most = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : most)
  for (std::int64_t v = 0; v < n; ++v) {
    const A value = static_cast<A>(z[v]);
    most = value > most ? value : most;
  }
  return most;
}

template <class T>
acc_t<T> exp_sum(const T* z, std::int64_t n, acc_t<T> most) {
  using A = acc_t<T>;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t v = 0; v < n; ++v) sum += vec_exp(static_cast<A>(z[v]) - most);
  return sum;
}

std::int64_t row_grain(const Tensor& logits) { return 1 + 4096 / (logits.cols() + 1); }

template <class Fn>
void for_rows(const Tensor& logits, Fn&& fn) {
  parallel_for(logits.rows(), row_grain(logits), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) fn(r);
  });
}

/// to = z'. `to` may be z.
template <class T, class Z>
void shape_row(T* to, const Z* z, std::int64_t n, const LogitShape& shape) {
  using A = acc_t<T>;
  const A* bias = shape.bias ? shape.bias.data<A>() : nullptr;
  const A cap = static_cast<A>(shape.soft_cap), inverse = shape.soft_cap > 0 ? A(1) / cap : A(0);
  const auto write = [&](auto&& of) {
    NEMOCUBE_IVDEP
    for (std::int64_t v = 0; v < n; ++v) to[v] = static_cast<T>(of(v));
  };
  const auto biased = [=](std::int64_t v) { return static_cast<A>(z[v]) + bias[v]; };
  if (cap == 0)
    write(biased);
  else if (bias)
    write([=](std::int64_t v) { return cap * vec_tanh(biased(v) * inverse); });
  else
    write([=](std::int64_t v) { return cap * vec_tanh(static_cast<A>(z[v]) * inverse); });
}

/// Calls fn(row, the row's z'; in a row without label, anything). Every thread has memory for one row of z'
/// that differs from z.
template <class T, class Fn>
void for_shaped_rows(const Tensor& logits, const Tensor& labels, const LogitShape& shape, Fn&& fn) {
  if (shape.plain()) return for_rows(logits, [&](std::int64_t r) { fn(r, logits.row<T>(r)); });
  const std::int64_t n = logits.cols();
  parallel_for(logits.rows(), row_grain(logits), [&](std::int64_t begin, std::int64_t end) {
    std::vector<acc_t<T>> shaped(static_cast<std::size_t>(n));
    for (std::int64_t r = begin; r < end; ++r) {
      if (labels.data<std::int64_t>()[r] != ignored_label)
        shape_row(shaped.data(), logits.row<T>(r), n, shape);
      fn(r, static_cast<const acc_t<T>*>(shaped.data()));
    }
  });
}

double row_loss(double most, double sum, double at_label) { return most - at_label + std::log(sum); }

/// Numbers of a row for its gradient.
template <class A>
struct RowGradient {
  std::int64_t label;  // as a column; one outside [0, n) is no column here
  A shift, factor, scale;
  A inverse_cap = 0;  // none
};

// d = scale (factor e^(z - shift) - onehot), times 1 - (z / cap)^2. d may be z: each element is read before
// it is written.
template <bool capped, class D, class T>
void gradient_row(D* d, const T* z, std::int64_t n, const RowGradient<acc_t<T>>& row) {
  using A = acc_t<T>;
  const A shift = row.shift, both = row.scale * row.factor, inverse = row.inverse_cap;
  const auto passed = [inverse](A v) { return A(1) - v * inverse * (v * inverse); };
  const bool here = row.label >= 0 && row.label < n;
  A at_label = 0;
  if (here) {
    const A v = static_cast<A>(z[row.label]);
    at_label = row.scale * (row.factor * vec_exp(v - shift) - A(1));
    if constexpr (capped) at_label *= passed(v);
  }
  NEMOCUBE_IVDEP
  for (std::int64_t c = 0; c < n; ++c) {
    const A v = static_cast<A>(z[c]);
    A g = both * vec_exp(v - shift);
    if constexpr (capped) g *= passed(v);
    d[c] = static_cast<D>(g);
  }
  if (here) d[row.label] = static_cast<D>(at_label);
}

template <class D, class T>
void gradient_row(D* d, const T* z, std::int64_t n, RowGradient<acc_t<T>> row, double soft_cap) {
  if (soft_cap == 0) return gradient_row<false>(d, z, n, row);
  row.inverse_cap = acc_t<T>(1) / static_cast<acc_t<T>>(soft_cap);
  gradient_row<true>(d, z, n, row);
}

/// Calls fn(tag, tag) for the types of gradients and logits: the same, or bf16 and f32.
template <class Fn>
void visit_gradient(const Tensor& dlogits, const Tensor& logits, Fn&& fn) {
  visit_float("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D> d) {
    if (logits.dtype() == dlogits.dtype())
      fn(d, d);
    else
      fn(d, TypeTag<acc_t<D>>());
  });
}

template <class T>
acc_t<T> at_label(const T* z, std::int64_t n, std::int64_t label) {
  return label >= 0 && label < n ? static_cast<acc_t<T>>(z[label]) : acc_t<T>(0);
}

template <class Fn>
void copy_rows(std::int64_t count, std::int64_t row_bytes, Fn&& ends) {
  parallel_for(count, 1 + 65536 / (row_bytes + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto [to, from] = ends(i);
      std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
    }
  });
}

/// The entries of a list that are rows of a batch.
std::int64_t listed(const Tensor& rows, std::int64_t batch_rows) {
  const auto* first = rows.data<std::int64_t>();
  return std::lower_bound(first, first + rows.numel(), batch_rows) - first;
}

std::byte* row_of(const Tensor& t, std::int64_t r) {
  return t.host_bytes() + r * t.row_stride() * size_of(t.dtype());
}

}  // namespace

void shape_logits(const Tensor& logits, const LogitShape& shape) {
  visit_float("shape_logits", logits.dtype(), [&]<class T>(TypeTag<T>) {
    for_rows(logits, [&](std::int64_t r) {
      T* z = logits.row<T>(r);
      shape_row(z, z, logits.cols(), shape);
    });
  });
}

void column_statistics(const RowStatistics& s, const Tensor& logits, const Tensor& labels, std::int64_t begin,
                       const LogitShape& shape) {
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_shaped_rows<T>(logits, labels, shape, [&](std::int64_t r, const auto* z) {
      A &most = s.max.data<A>()[r], *sums = s.sums.row<A>(r);
      most = sums[0] = sums[1] = 0;
      const std::int64_t label = labels.data<std::int64_t>()[r], n = logits.cols();
      if (label == ignored_label) return;
      most = largest(z, n);
      // Where all logits here are -inf, their sum is 0: another rank may have larger ones. -inf - -inf is
      // NaN.
      sums[0] = exp_sum(z, n, most == -std::numeric_limits<A>::infinity() ? A(0) : most);
      sums[1] = at_label(z, n, label - begin);
    });
  });
}

void rescale_sums(const RowStatistics& s, const Tensor& own_max) {
  visit_accumulate("cross_entropy", own_max.dtype(), [&]<class A>(TypeTag<A>) {
    for (std::int64_t r = 0; r < own_max.numel(); ++r)
      s.sums.row<A>(r)[0] *= std::exp(own_max.data<A>()[r] - s.max.data<A>()[r]);
  });
}

void row_losses(const Tensor& losses, const RowStatistics& statistics, const Tensor& labels) {
  visit_accumulate("cross_entropy", statistics.max.dtype(), [&]<class A>(TypeTag<A>) {
    for (std::int64_t r = 0; r < losses.numel(); ++r) {
      const A* sums = statistics.sums.row<A>(r);
      losses.data<double>()[r] = labels.data<std::int64_t>()[r] == ignored_label
                                     ? 0
                                     : row_loss(statistics.max.data<A>()[r], sums[0], sums[1]);
    }
  });
}

void weigh_losses(const Tensor& losses, const Tensor& weights) {
  for (std::int64_t r = 0; r < losses.numel(); ++r) losses.data<double>()[r] *= weights.data<double>()[r];
}

void sum_losses(const Tensor& loss, const Tensor& losses) {
  double sum = 0;
  for (std::int64_t r = 0; r < losses.numel(); ++r) sum += losses.data<double>()[r];
  visit_accumulate("cross_entropy", loss.dtype(),
                   [&]<class A>(TypeTag<A>) { *loss.data<A>() = static_cast<A>(sum); });
}

void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& statistics,
                      const Tensor& labels, std::int64_t begin, const GradScale& grad_scale,
                      const LogitShape& shape) {
  visit_gradient(dlogits, logits, [&]<class D, class T>(TypeTag<D>, TypeTag<T>) {
    using A = acc_t<T>;
    for_shaped_rows<T>(logits, labels, shape, [&](std::int64_t r, const auto* z) {
      const std::int64_t label = labels.data<std::int64_t>()[r];
      D* d = dlogits.row<D>(r);
      if (label == ignored_label)
        std::fill_n(d, logits.cols(), D(0.0f));
      else
        gradient_row(d, z, logits.cols(),
                     {.label = label - begin,
                      .shift = statistics.max.data<A>()[r],
                      .factor = A(1) / statistics.sums.row<A>(r)[0],
                      .scale = static_cast<A>(grad_scale.value(r))},
                     shape.soft_cap);
    });
  });
}

void softmax_losses_and_gradient(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                                 const Tensor& labels, const GradScale& grad_scale, const LogitShape& shape) {
  visit_gradient(dlogits, logits, [&]<class D, class T>(TypeTag<D>, TypeTag<T>) {
    using A = acc_t<T>;
    for_shaped_rows<T>(logits, labels, shape, [&](std::int64_t r, const auto* z) {
      const std::int64_t label = labels.data<std::int64_t>()[r], n = logits.cols();
      if (label == ignored_label) {
        losses.data<double>()[r] = 0;
        std::fill_n(dlogits.row<D>(r), n, D(0.0f));
        return;
      }
      const A most = largest(z, n), sum = exp_sum(z, n, most);
      losses.data<double>()[r] = row_loss(most, sum, at_label(z, n, label));
      gradient_row(
          dlogits.row<D>(r), z, n,
          {.label = label, .shift = most, .factor = A(1) / sum, .scale = static_cast<A>(grad_scale.value(r))},
          shape.soft_cap);
    });
  });
}

void first_of_max(const Tensor& first, const Tensor& logits, const RowStatistics& statistics,
                  const Tensor& labels, std::int64_t begin, const LogitShape& shape) {
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_shaped_rows<T>(logits, labels, shape, [&](std::int64_t r, const auto* z) {
      const std::int64_t n = logits.cols();
      const bool labelled = labels.data<std::int64_t>()[r] != ignored_label;
      const A most = statistics.max.data<A>()[r];
      std::int64_t v = labelled ? 0 : n;
      while (v < n && static_cast<A>(z[v]) != most) ++v;
      first.data<double>()[r] =
          v < n ? -static_cast<double>(begin + v) : -std::numeric_limits<double>::infinity();
    });
  });
}

void add_z_loss(const Tensor& losses, const Tensor& dlogits, const RowStatistics& statistics,
                const Tensor& first, const Tensor& labels, std::int64_t begin, const GradScale& grad_scale,
                const LogitShape& shape) {
  const double weight = shape.z_loss_weight;
  const DType dtype = dlogits ? dlogits.dtype() : statistics.max.dtype();
  visit_float("cross_entropy", dtype, [&]<class D>(TypeTag<D>) {
    using A = acc_t<D>;
    for (std::int64_t r = 0; r < losses.numel(); ++r) {
      const std::int64_t label = labels.data<std::int64_t>()[r];
      if (label == ignored_label) continue;
      const double most = statistics.max.data<A>()[r];
      losses.data<double>()[r] += weight * most * most;
      if (!first) continue;
      const double column = -first.data<double>()[r] - static_cast<double>(begin);
      if (!(column >= 0 && column < static_cast<double>(dlogits.cols()))) continue;
      const auto v = static_cast<std::int64_t>(column);
      const A softmax = A(1) / statistics.sums.row<A>(r)[0], of_label = v == label - begin ? A(1) : A(0),
              t = shape.soft_cap > 0 ? static_cast<A>(most / shape.soft_cap) : A(0);
      dlogits.row<D>(r)[v] =
          static_cast<D>(static_cast<A>(grad_scale.value(r)) *
                         (softmax - of_label + static_cast<A>(2 * weight * most)) * (A(1) - t * t));
    }
  });
}

void scale_gradient(const Tensor& dlogits, const Tensor& dloss) {
  visit_float("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D>) {
    using A = acc_t<D>;
    const A factor = *dloss.data<A>();
    if (factor == 1) return;
    for_rows(dlogits, [&](std::int64_t r) {
      D* d = dlogits.row<D>(r);
      for (std::int64_t v = 0; v < dlogits.cols(); ++v) d[v] = static_cast<D>(factor * static_cast<A>(d[v]));
    });
  });
}

void gather_labelled(const Tensor& to, const Tensor& from, const Tensor& rows) {
  if (to.numel() == 0) return;
  const std::int64_t n = listed(rows, from.rows());
  copy_rows(n, to.cols() * size_of(to.dtype()), [&](std::int64_t i) {
    return std::pair(row_of(to, i), row_of(from, rows.data<std::int64_t>()[i]));
  });
  to.narrow(0, n, to.dim(0) - n).zero();
}

void scatter_labelled(const Tensor& to, const Tensor& from, const Tensor& rows) {
  to.zero();
  if (to.numel() == 0) return;
  copy_rows(listed(rows, to.rows()), to.cols() * size_of(to.dtype()), [&](std::int64_t i) {
    return std::pair(row_of(to, rows.data<std::int64_t>()[i]), row_of(from, i));
  });
}

// The number of labelled rows changes from batch to batch. With rows up to a multiple of this, oneDNN
// prepares products of few different sizes.
std::int64_t product_rows(const Tensor& rows) { return (rows.numel() + 31) / 32 * 32; }

}  // namespace nemocube::cpu

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

template <class Fn>
void for_rows(const Tensor& logits, Fn&& fn) {
  parallel_for(logits.rows(), 1 + 4096 / (logits.cols() + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) fn(r);
  });
}

double row_loss(double most, double sum, double at_label) { return most - at_label + std::log(sum); }

// d = scale (factor e^(z - shift) - onehot); a label outside [0, n) is no column here. d may be z: each
// element is read before it is written.
template <class D, class T>
void gradient_row(D* d, const T* z, std::int64_t n, std::int64_t label, acc_t<T> shift, acc_t<T> factor,
                  acc_t<T> scale) {
  using A = acc_t<T>;
  const bool here = label >= 0 && label < n;
  const A at_label = here ? scale * (factor * vec_exp(static_cast<A>(z[label]) - shift) - A(1)) : A(0);
  const A both = scale * factor;
  NEMOCUBE_IVDEP
  for (std::int64_t v = 0; v < n; ++v) d[v] = static_cast<D>(both * vec_exp(static_cast<A>(z[v]) - shift));
  if (here) d[label] = static_cast<D>(at_label);
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

void column_statistics(const RowStatistics& s, const Tensor& logits, const Tensor& labels,
                       std::int64_t begin) {
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      A &most = s.max.data<A>()[r], *sums = s.sums.row<A>(r);
      most = sums[0] = sums[1] = 0;
      const std::int64_t label = labels.data<std::int64_t>()[r], n = logits.cols();
      if (label == ignored_label) return;
      const T* z = logits.row<T>(r);
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

void sum_losses(const Tensor& loss, const Tensor& losses) {
  double sum = 0;
  for (std::int64_t r = 0; r < losses.numel(); ++r) sum += losses.data<double>()[r];
  visit_accumulate("cross_entropy", loss.dtype(),
                   [&]<class A>(TypeTag<A>) { *loss.data<A>() = static_cast<A>(sum); });
}

void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& statistics,
                      const Tensor& labels, std::int64_t begin, const GradScale& grad_scale) {
  const double scale = grad_scale.value();
  visit_gradient(dlogits, logits, [&]<class D, class T>(TypeTag<D>, TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      const std::int64_t label = labels.data<std::int64_t>()[r];
      D* d = dlogits.row<D>(r);
      if (label == ignored_label)
        std::fill_n(d, logits.cols(), D(0.0f));
      else
        gradient_row(d, logits.row<T>(r), logits.cols(), label - begin, statistics.max.data<A>()[r],
                     A(1) / statistics.sums.row<A>(r)[0], static_cast<A>(scale));
    });
  });
}

void softmax_losses_and_gradient(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                                 const Tensor& labels, const GradScale& grad_scale) {
  const double scale = grad_scale.value();
  visit_gradient(dlogits, logits, [&]<class D, class T>(TypeTag<D>, TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      const std::int64_t label = labels.data<std::int64_t>()[r], n = logits.cols();
      if (label == ignored_label) {
        losses.data<double>()[r] = 0;
        std::fill_n(dlogits.row<D>(r), n, D(0.0f));
        return;
      }
      const T* z = logits.row<T>(r);
      const A most = largest(z, n), sum = exp_sum(z, n, most);
      losses.data<double>()[r] = row_loss(most, sum, at_label(z, n, label));
      gradient_row(dlogits.row<D>(r), z, n, label, most, A(1) / sum, static_cast<A>(scale));
    });
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

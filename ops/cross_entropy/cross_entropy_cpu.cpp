#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel_for.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
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

// d = scale (factor e^(z - shift) - onehot); a label outside [0, n) is no column here. d may be z: each element
// is read before it is written.
template <class D, class T>
void gradient_row(D* d, const T* z, std::int64_t n, std::int64_t label, acc_t<T> shift, acc_t<T> factor,
                  acc_t<T> scale) {
  using A = acc_t<T>;
  const bool here = label >= 0 && label < n;
  const A at_label = here ? scale * (factor * vec_exp(static_cast<A>(z[label]) - shift) - A(1)) : A(0);
  const A both = scale * factor;
#pragma GCC ivdep
  for (std::int64_t v = 0; v < n; ++v) d[v] = static_cast<D>(both * vec_exp(static_cast<A>(z[v]) - shift));
  if (here) d[label] = static_cast<D>(at_label);
}

// The statistics of the columns here, whose sums are relative to their own maximum.
RowStatistics local_statistics(const Tensor& logits, std::span<const std::int64_t> labels,
                               std::int64_t begin) {
  const DType dtype = accumulate_dtype(logits.dtype());
  RowStatistics s{Tensor::empty({logits.rows()}, dtype, Device::cpu),
                  Tensor::empty({logits.rows(), 2}, dtype, Device::cpu)};
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      A &most = s.max.data<A>()[r], *sums = s.sums.row<A>(r);
      most = sums[0] = sums[1] = 0;
      if (labels[static_cast<std::size_t>(r)] == ignored_label) return;
      const T* z = logits.row<T>(r);
      const std::int64_t label = labels[static_cast<std::size_t>(r)] - begin, n = logits.cols();
      most = largest(z, n);
      // Where all logits here are -inf, their sum is 0: another rank may have larger ones. -inf - -inf is NaN.
      sums[0] = exp_sum(z, n, most == -std::numeric_limits<A>::infinity() ? A(0) : most);
      if (label >= 0 && label < n) sums[1] = static_cast<A>(z[label]);
    });
  });
  return s;
}

void combine(const RowStatistics& s, RankReduction& reduction) {
  if (s.max.numel() == 0) return;
  const Tensor own = s.max.clone();
  reduction.max(s.max);
  visit_accumulate("cross_entropy", own.dtype(), [&]<class A>(TypeTag<A>) {
    for (std::int64_t r = 0; r < own.numel(); ++r)
      s.sums.row<A>(r)[0] *= std::exp(own.data<A>()[r] - s.max.data<A>()[r]);
  });
  reduction.sum(s.sums);
}

}  // namespace

std::span<const std::int64_t> checked_labels(const char* op, const Tensor& labels, std::int64_t rows,
                                             std::int64_t vocabulary) {
  check_dtype(cat(op, ": labels"), labels, DType::i64);
  require(labels.numel() == rows && labels.contiguous(), op, ": labels: want ", rows,
          " contiguous values, got shape ", labels.shape());
  if (rows == 0) return {};
  const std::span<const std::int64_t> values(labels.data<std::int64_t>(), static_cast<std::size_t>(rows));
  for (std::size_t t = 0; t < values.size(); ++t)
    require(values[t] == ignored_label || (values[t] >= 0 && values[t] < vocabulary), op, ": label ",
            values[t], " at position ", t, ": want ", ignored_label, " or a token in [0, ", vocabulary, ")");
  return values;
}

RowStatistics row_statistics(const Tensor& logits, std::span<const std::int64_t> labels,
                             const VocabularyPart& part) {
  RowStatistics s = local_statistics(logits, labels, part.begin);
  if (part.reduction) combine(s, *part.reduction);
  return s;
}

void row_losses(std::span<double> losses, const RowStatistics& statistics,
                std::span<const std::int64_t> labels) {
  visit_accumulate("cross_entropy", statistics.max.dtype(), [&]<class A>(TypeTag<A>) {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto r = static_cast<std::int64_t>(i);
      const A* sums = statistics.sums.row<A>(r);
      losses[i] = labels[i] == ignored_label ? 0 : row_loss(statistics.max.data<A>()[r], sums[0], sums[1]);
    }
  });
}

void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& statistics,
                      std::span<const std::int64_t> labels, std::int64_t begin, double scale) {
  const auto rows = [&]<class D, class T>(TypeTag<D>, TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      const std::int64_t label = labels[static_cast<std::size_t>(r)];
      D* d = dlogits.row<D>(r);
      if (label == ignored_label)
        std::fill_n(d, logits.cols(), D(0.0f));
      else
        gradient_row(d, logits.row<T>(r), logits.cols(), label - begin, statistics.max.data<A>()[r],
                     A(1) / statistics.sums.row<A>(r)[0], static_cast<A>(scale));
    });
  };
  visit_float("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D> d) {
    if (logits.dtype() == dlogits.dtype())
      rows(d, d);
    else
      rows(d, TypeTag<acc_t<D>>());
  });
}

void softmax_losses_and_gradient(const Tensor& dlogits, std::span<double> losses, const Tensor& logits,
                                 std::span<const std::int64_t> labels, double scale) {
  visit_float("cross_entropy", dlogits.dtype(), [&]<class D>(TypeTag<D>) {
    using T = acc_t<D>;
    for_rows(logits, [&](std::int64_t r) {
      const auto i = static_cast<std::size_t>(r);
      const T* z = logits.row<T>(r);
      const T most = largest(z, logits.cols()), sum = exp_sum(z, logits.cols(), most);
      losses[i] = row_loss(most, sum, z[labels[i]]);
      gradient_row(dlogits.row<D>(r), z, logits.cols(), labels[i], most, T(1) / sum, static_cast<T>(scale));
    });
  });
}

}  // namespace nemocube::cpu

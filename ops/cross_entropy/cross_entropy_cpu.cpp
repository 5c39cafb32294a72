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

template <class T>
double row_loss(const T* z, std::int64_t label, acc_t<T> most, acc_t<T> sum) {
  return static_cast<double>(most) - static_cast<double>(z[label]) + std::log(static_cast<double>(sum));
}

// d = scale (factor e^(z - shift) - onehot). d may be z: each element is read before it is written.
template <class D, class T>
void gradient_row(D* d, const T* z, std::int64_t n, std::int64_t label, acc_t<T> shift, acc_t<T> factor,
                  acc_t<T> scale) {
  using A = acc_t<T>;
  const A at_label = scale * (factor * vec_exp(static_cast<A>(z[label]) - shift) - A(1));
  const A both = scale * factor;
#pragma GCC ivdep
  for (std::int64_t v = 0; v < n; ++v) d[v] = static_cast<D>(both * vec_exp(static_cast<A>(z[v]) - shift));
  d[label] = static_cast<D>(at_label);
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

void softmax_losses(const Tensor& lse, std::span<double> losses, const Tensor& logits,
                    std::span<const std::int64_t> labels) {
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      const auto i = static_cast<std::size_t>(r);
      losses[i] = 0;
      if (labels[i] == ignored_label) return;
      const T* z = logits.row<T>(r);
      const A most = largest(z, logits.cols()), sum = exp_sum(z, logits.cols(), most);
      losses[i] = row_loss(z, labels[i], most, sum);
      lse.data<A>()[r] = most + std::log(sum);
    });
  });
}

void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const Tensor& lse,
                      std::span<const std::int64_t> labels, double scale) {
  visit_float("cross_entropy", logits.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_rows(logits, [&](std::int64_t r) {
      const std::int64_t label = labels[static_cast<std::size_t>(r)];
      T* d = dlogits.row<T>(r);
      if (label == ignored_label)
        std::fill_n(d, logits.cols(), T(0.0f));
      else
        gradient_row(d, logits.row<T>(r), logits.cols(), label, lse.data<A>()[r], A(1),
                     static_cast<A>(scale));
    });
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
      losses[i] = row_loss(z, labels[i], most, sum);
      gradient_row(dlogits.row<D>(r), z, logits.cols(), labels[i], most, T(1) / sum, static_cast<T>(scale));
    });
  });
}

}  // namespace nemocube::cpu

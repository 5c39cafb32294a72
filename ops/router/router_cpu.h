#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "core/tensor.h"
#include "ops/math.h"

/// The common part of the router's kernels on the CPU.
namespace nemocube::cpu {

/// Keeps a sum of scores above 0.
constexpr double router_tiny = 1e-20;

inline std::int64_t token_grain(std::int64_t experts) { return 1 + 4096 / (1 + experts); }

template <class T>
T sum_of(const T* s, std::int64_t n) {
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += s[i];
  return sum;
}

/// Calls fn(part, token) for the rows [first, last) in order, without spare rows. `offsets` as in
/// router_kernels.h.
template <class Fn>
void for_tokens(const Tensor& offsets, std::int64_t first, std::int64_t last, Fn&& fn) {
  if (!offsets.defined()) {
    for (std::int64_t t = first; t < last; ++t) fn(std::int64_t{0}, t);
    return;
  }
  const std::span at(offsets.data<std::int64_t>(), static_cast<std::size_t>(offsets.numel()));
  last = std::min(last, at.back());
  std::int64_t q = std::ranges::upper_bound(at, first) - at.begin() - 1;
  for (std::int64_t t = first; t < last; ++t) {
    while (t >= at[static_cast<std::size_t>(q) + 1]) ++q;
    fn(q, t);
  }
}

/// Any of them where one is NaN.
template <class T>
T largest_of(const T* l, std::int64_t n) {
  T most = l[0];
  for (std::int64_t i = 1; i < n; ++i) most = std::max(most, l[i]);
  return most;
}

/// log sum_i exp l_i
template <class T>
T log_sum(const T* l, std::int64_t n) {
  const T most = largest_of(l, n);
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += vec_exp(l[i] - most);
  return most + std::log(sum);
}

}  // namespace nemocube::cpu

#include "ops/router/router_cpu.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "core/parallel_for.h"
#include "ops/router/router_kernels.h"

namespace nemocube::cpu {
namespace {

// Takes the largest of a row of values, then the next largest, and so on; ties go to the lowest index. A
// taken value becomes -inf, so all values must be above -inf at the start. The maximum of each block is
// stored, so that taking a value searches one block instead of the whole row.
template <class T>
class Largest {
 public:
  static constexpr T taken = -std::numeric_limits<T>::infinity();
  void start(std::span<T> values) {
    values_ = values;
    best_.resize((values.size() + block - 1) / block);
    for (std::size_t b = 0; b < best_.size(); ++b) refresh(b);
  }
  std::size_t take() {
    std::size_t at = 0;
    for (std::size_t b = 1; b < best_.size(); ++b) at = best_[b] > best_[at] ? b : at;
    std::size_t i = at * block;
    while (values_[i] != best_[at]) ++i;
    values_[i] = taken;
    refresh(at);
    return i;
  }

 private:
  static constexpr std::size_t block = 16;
  void refresh(std::size_t b) {
    const std::size_t end = std::min((b + 1) * block, values_.size());
    T most = taken;
    for (std::size_t i = b * block; i < end; ++i) most = values_[i] > most ? values_[i] : most;
    best_[b] = most;
  }
  std::span<T> values_;
  std::vector<T> best_;
};

// The sum of the two largest values, or the value itself when there is only one.
template <class T>
T group_score(std::span<const T> t) {
  if (t.size() == 1) return t[0];
  T first = std::max(t[0], t[1]), second = std::min(t[0], t[1]);
  for (const T v : t.subspan(2)) {
    second = std::max(second, std::min(first, v));
    first = std::max(first, v);
  }
  return first + second;
}

// Turns NaN and -inf into the lowest finite value, because -inf marks values that are taken.
template <class T>
T selectable(T v) {
  return v > std::numeric_limits<T>::lowest() ? v : std::numeric_limits<T>::lowest();
}

template <class T>
void select_rows(const Tensor& experts, const Tensor& scores, const Tensor& bias, const RouterOptions& o) {
  const auto n = static_cast<std::size_t>(o.experts), groups = static_cast<std::size_t>(o.groups);
  const std::size_t group_size = n / groups;
  const T* b = bias.defined() ? bias.data<T>() : nullptr;
  parallel_for(scores.rows(), token_grain(o.experts), [&](std::int64_t first, std::int64_t last) {
    std::vector<T> t(n), group(groups), masked;
    Largest<T> largest;
    for (std::int64_t r = first; r < last; ++r) {
      const T* s = scores.row<T>(r);
      for (std::size_t i = 0; i < n; ++i) t[i] = selectable(b ? s[i] + b[i] : s[i]);
      if (o.top_groups < o.groups) {
        for (std::size_t g = 0; g < groups; ++g)
          group[g] = selectable(group_score(std::span<const T>(t).subspan(g * group_size, group_size)));
        masked.assign(n, Largest<T>::taken);
        largest.start(group);
        for (std::int64_t m = 0; m < o.top_groups; ++m) {
          const std::size_t g = largest.take();
          std::copy_n(t.data() + g * group_size, group_size, masked.data() + g * group_size);
        }
        t.swap(masked);
      }
      auto* to = experts.row<std::int32_t>(r);
      largest.start(t);
      for (std::int64_t j = 0; j < o.top_k; ++j) to[j] = static_cast<std::int32_t>(largest.take());
      std::sort(to, to + o.top_k);
    }
  });
}

// Choice j of token t is expert (t k + j) mod E, for the rows from `first` on.
void spread_rows(const Tensor& experts, std::int64_t count, std::int64_t first) {
  const std::int64_t k = experts.cols();
  for (std::int64_t t = first; t < experts.rows(); ++t) {
    auto* to = experts.row<std::int32_t>(t);
    for (std::int64_t j = 0; j < k; ++j) to[j] = static_cast<std::int32_t>((t * k + j) % count);
    std::sort(to, to + k);
  }
}

// ds of the chosen experts, from the gradient of their weights.
template <class T>
void add_weight_gradient(T* ds, const T* s, const std::int32_t* chosen, const T* dw, const RouterOptions& o) {
  const T scaling = static_cast<T>(o.scaling);
  if (!o.normalise) {
    for (std::int64_t j = 0; j < o.top_k; ++j) ds[chosen[j]] += scaling * dw[j];
    return;
  }
  T z = 0, mixed = 0;
  for (std::int64_t j = 0; j < o.top_k; ++j) z += s[chosen[j]];
  z += static_cast<T>(router_tiny);
  for (std::int64_t j = 0; j < o.top_k; ++j) mixed += dw[j] * (s[chosen[j]] / z);
  for (std::int64_t j = 0; j < o.top_k; ++j) ds[chosen[j]] += scaling * (dw[j] - mixed) / z;
}

template <class T>
void add_balance_gradient(T* ds, const T* s, const T* factors, std::int64_t n) {
  const T z = sum_of(s, n) + static_cast<T>(router_tiny);
  T mixed = 0;
  for (std::int64_t i = 0; i < n; ++i) mixed += factors[i] * s[i];
  mixed /= z;
  for (std::int64_t i = 0; i < n; ++i) ds[i] += (factors[i] - mixed) / z;
}

template <class T>
void add_z_gradient(T* d, const T* l, std::int64_t n, T z_factor) {
  const T lse = log_sum(l, n);
  const T factor = z_factor * lse;
  for (std::int64_t i = 0; i < n; ++i) d[i] += factor * vec_exp(l[i] - lse);
}

/// Calls token(dlogits, q, t) for each token t, of part q, with dlogits of zeros, and adds the gradient of
/// z-loss. Spare rows get zeros.
template <class T, class Fn>
void backward_rows(const Tensor& dlogits, const AuxGradient& aux, Fn&& token) {
  const std::int64_t n = dlogits.cols();
  const double z_factor =
      aux.logits.defined() ? aux.z_scale / static_cast<double>(*aux.tokens.data<std::int64_t>()) : 0;
  parallel_for(dlogits.rows(), token_grain(n), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) std::fill_n(dlogits.row<T>(t), n, T{0});
    for_tokens(aux.offsets, first, last, [&](std::int64_t q, std::int64_t t) {
      T* d = dlogits.row<T>(t);
      token(d, q, t);
      if (aux.logits.defined()) add_z_gradient(d, aux.logits.row<T>(t), n, static_cast<T>(z_factor));
    });
  });
}

template <class T>
void sigmoid_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores,
                      const Tensor& experts, const RouterOptions& o, const AuxGradient& aux) {
  const std::int64_t n = o.experts;
  backward_rows<T>(dlogits, aux, [&](T* __restrict d, std::int64_t q, std::int64_t t) {
    const T* __restrict s = scores.row<T>(t);
    if (dweights.defined()) add_weight_gradient(d, s, experts.row<std::int32_t>(t), dweights.row<T>(t), o);
    if (aux.factors.defined()) add_balance_gradient(d, s, aux.factors.row<T>(q), n);
    for (std::int64_t i = 0; i < n; ++i) d[i] *= s[i] * (T{1} - s[i]);
  });
}

/// dl = s (ds - sum ds s), where d holds ds.
template <class T>
void through_softmax(T* __restrict d, const T* __restrict s, std::int64_t n) {
  T mixed = 0;
  for (std::int64_t i = 0; i < n; ++i) mixed += d[i] * s[i];
  for (std::int64_t i = 0; i < n; ++i) d[i] = s[i] * (d[i] - mixed);
}

template <class T>
void softmax_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores,
                      const Tensor& weights, const Tensor& experts, const RouterOptions& o,
                      const AuxGradient& aux) {
  const std::int64_t n = o.experts, k = o.top_k;
  const T scaling = static_cast<T>(o.scaling), per_scaling = scaling == 0 ? 0 : 1 / scaling;
  const bool weighed = dweights.defined(), dense = aux.factors.defined() || (weighed && !o.normalise);
  backward_rows<T>(dlogits, aux, [&](T* d, std::int64_t q, std::int64_t t) {
    const std::int32_t* chosen = experts.row<std::int32_t>(t);
    if (aux.factors.defined()) std::copy_n(aux.factors.row<T>(q), n, d);
    if (weighed && !o.normalise)
      for (std::int64_t j = 0; j < k; ++j) d[chosen[j]] += scaling * dweights.row<T>(t)[j];
    if (dense) through_softmax(d, scores.row<T>(t), n);
    if (!weighed || !o.normalise) return;
    const T *dw = dweights.row<T>(t), *w = weights.row<T>(t);
    T mixed = 0;
    for (std::int64_t j = 0; j < k; ++j) mixed += dw[j] * w[j];
    mixed *= per_scaling;
    for (std::int64_t j = 0; j < k; ++j) d[chosen[j]] += w[j] * (dw[j] - mixed);
  });
}

template <class T>
void softmax_row(T* __restrict s, const T* __restrict l, std::int64_t n) {
  const T most = largest_of(l, n);
  for (std::int64_t i = 0; i < n; ++i) s[i] = vec_exp(l[i] - most);
  const T each = T{1} / sum_of(s, n);
  for (std::int64_t i = 0; i < n; ++i) s[i] *= each;
}

/// Softmax over the logits of the chosen experts. The largest of them adds 1 to the sum.
template <class T>
void chosen_softmax(T* w, const T* l, const std::int32_t* chosen, std::int64_t k) {
  for (std::int64_t j = 0; j < k; ++j) w[j] = l[chosen[j]];
  const T most = largest_of(w, k);
  T sum = 0;
  for (std::int64_t j = 0; j < k; ++j) sum += w[j] = vec_exp(w[j] - most);
  for (std::int64_t j = 0; j < k; ++j) w[j] /= sum;
}

template <class T>
void sigmoid_row(T* __restrict s, const T* __restrict l, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) s[i] = sigmoid(l[i]);
}

void set_scores(const Tensor& scores, const Tensor& logits, RouterScores kind) {
  const std::int64_t n = scores.cols();
  visit_accumulate("router", scores.dtype(), [&]<class T>(TypeTag<T>) {
    const auto set = kind == RouterScores::softmax ? softmax_row<T> : sigmoid_row<T>;
    parallel_for(scores.rows(), token_grain(n), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) set(scores.row<T>(r), logits.row<T>(r), n);
    });
  });
}

void set_weights(const Tensor& weights, const Tensor& scores, const Tensor& logits, const Tensor& experts,
                 const RouterOptions& options) {
  const bool softmax = options.scores == RouterScores::softmax;
  visit_accumulate("router", weights.dtype(), [&]<class T>(TypeTag<T>) {
    const T scaling = static_cast<T>(options.scaling);
    const auto set = [&](std::int64_t t) {
      const auto* chosen = experts.row<std::int32_t>(t);
      T* w = weights.row<T>(t);
      if (softmax && options.normalise) {
        chosen_softmax(w, logits.row<T>(t), chosen, options.top_k);
        for (std::int64_t j = 0; j < options.top_k; ++j) w[j] *= scaling;
        return;
      }
      const T* s = scores.row<T>(t);
      T z = 0;
      for (std::int64_t j = 0; j < options.top_k; ++j) z += s[chosen[j]];
      z = options.normalise ? z + static_cast<T>(router_tiny) : T{1};
      for (std::int64_t j = 0; j < options.top_k; ++j) w[j] = s[chosen[j]] / z * scaling;
    };
    parallel_for(weights.rows(), token_grain(options.top_k), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) set(t);
    });
  });
}

}  // namespace

void router_select(const Tensor& experts, const Tensor& scores, const Tensor& bias,
                   const RouterOptions& options) {
  if (options.balanced) return spread_rows(experts, options.experts, 0);
  visit_accumulate("router", scores.dtype(),
                   [&]<class T>(TypeTag<T>) { select_rows<T>(experts, scores, bias, options); });
}

void router_choose(const Tensor& scores, const Tensor& experts, const Tensor& weights, const Tensor& counts,
                   const Tensor& logits, const Tensor& bias, const RouterOptions& options, bool chosen,
                   const Tensor& offsets) {
  if (scores.defined()) set_scores(scores, logits, options.scores);
  if (!chosen) {
    router_select(experts, selects_by_logits(options, bias) ? logits : scores, bias, options);
    const std::int64_t tokens = offsets.defined() ? offsets.data<std::int64_t>()[1] : experts.rows();
    spread_rows(experts, options.experts, tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < options.top_k; ++j)
        ++counts.data<std::int64_t>()[experts.row<std::int32_t>(t)[j]];
  }
  set_weights(weights, scores, logits, experts, options);
}

void router_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& weights, const Tensor& experts, const RouterOptions& options,
                     const AuxGradient& aux) {
  visit_accumulate("router", dlogits.dtype(), [&]<class T>(TypeTag<T>) {
    if (options.scores == RouterScores::softmax)
      softmax_backward<T>(dlogits, dweights, scores, weights, experts, options, aux);
    else
      sigmoid_backward<T>(dlogits, dweights, scores, experts, options, aux);
  });
}

}  // namespace nemocube::cpu

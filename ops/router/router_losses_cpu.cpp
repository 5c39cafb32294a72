#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/router/router_cpu.h"
#include "ops/router/router_kernels.h"

namespace nemocube::cpu {
namespace {

// The loss coef E sum_i f_i P_i has f_i = c_i / (k counted), and P_i is the mean of p_ti over `tokens`
// tokens. Returns the derivative of the loss by p_ti, divided by c_i.
double count_factor(double coef, std::int64_t counted, std::int64_t tokens, const RouterOptions& o) {
  return coef * static_cast<double>(o.experts) /
         (static_cast<double>(o.top_k) * static_cast<double>(counted) * static_cast<double>(tokens));
}

// factors_i = each counts_i
template <class T>
void set_factors(T* factors, const std::int64_t* counts, std::int64_t n, double each) {
  for (std::int64_t i = 0; i < n; ++i) factors[i] = static_cast<T>(each * static_cast<double>(counts[i]));
}

template <class T>
void set_sequence_factors(const Tensor& factors, const Tensor& table, const RouterOptions& o) {
  const std::int64_t n = o.experts;
  std::int64_t filled = 0;
  for (std::int64_t q = 0; q < table.rows(); ++q) filled += table.row<std::int64_t>(q)[n] > 0 ? 1 : 0;
  const double coef = o.seq_aux_loss_coef / static_cast<double>(filled);
  for (std::int64_t q = 0; q < table.rows(); ++q) {
    const auto* counts = table.row<std::int64_t>(q);
    const double each = counts[n] > 0 ? count_factor(coef, counts[n], counts[n], o) : 0;
    set_factors(factors.row<T>(q), counts, n, each);
  }
}

template <class T>
void balance_as(const BalanceFactors& f, const RouterOptions& o) {
  const std::int64_t n = o.experts;
  const auto* whole = f.whole.data<std::int64_t>();
  const std::int64_t tokens = whole[f.whole.numel() - 1];
  if (f.sequences) set_sequence_factors<T>(f.sequences, f.table, o);
  if (f.microbatch)
    set_factors(f.microbatch.data<T>(), whole, n, count_factor(o.aux_loss_coef, tokens, tokens, o));
  if (f.global) {
    const auto* totals = f.totals.data<std::int64_t>();
    set_factors(f.global.data<T>(), totals, n, count_factor(o.global_aux_loss_coef, totals[n], tokens, o));
  }
  for (std::int64_t q = 0; q < f.sum.rows(); ++q) {
    T* sum = f.sum.row<T>(q);
    for (std::int64_t i = 0; i < n; ++i) {
      sum[i] = f.sequences ? f.sequences.row<T>(q)[i] : T{0};
      if (f.microbatch) sum[i] += f.microbatch.data<T>()[i];
      if (f.global) sum[i] += f.global.data<T>()[i];
      sum[i] *= static_cast<T>(o.aux_grad_scale);
    }
  }
}

}  // namespace

void router_count(const Tensor& table, const Tensor& experts, const Tensor& offsets) {
  table.zero();
  const std::int64_t n = table.cols() - 1, k = experts.cols();
  for_tokens(offsets, 0, experts.rows(), [&](std::int64_t q, std::int64_t t) {
    auto* counts = table.row<std::int64_t>(q);
    const auto* chosen = experts.row<std::int32_t>(t);
    ++counts[n];
    for (std::int64_t j = 0; n > 0 && j < k; ++j) ++counts[chosen[j]];
  });
}

void router_sum_parts(const Tensor& sum, const Tensor& table) {
  sum.zero();
  for (std::int64_t q = 0; q < table.rows(); ++q)
    for (std::int64_t i = 0; i < sum.numel(); ++i)
      sum.data<std::int64_t>()[i] += table.row<std::int64_t>(q)[i];
}

void router_balance(const BalanceFactors& factors, const RouterOptions& options) {
  visit_accumulate("router", factors.sum.dtype(),
                   [&]<class T>(TypeTag<T>) { balance_as<T>(factors, options); });
}

void router_balance_loss(const Tensor& loss, const Tensor& scores, const Tensor& factors,
                         const Tensor& offsets) {
  const std::int64_t n = scores.cols();
  std::vector<double> share(static_cast<std::size_t>(scores.rows()));
  visit_accumulate("router", scores.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for(scores.rows(), token_grain(n), [&](std::int64_t first, std::int64_t last) {
      for_tokens(offsets, first, last, [&](std::int64_t q, std::int64_t t) {
        const T* s = scores.row<T>(t);
        const T* f = factors.row<T>(q);
        double z = router_tiny, sum = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          z += static_cast<double>(s[i]);
          sum += static_cast<double>(f[i]) * static_cast<double>(s[i]);
        }
        share[static_cast<std::size_t>(t)] = sum / z;
      });
    });
  });
  *loss.data<double>() = sum_of(share.data(), scores.rows());
}

void router_z_loss(const Tensor& loss, const Tensor& logits, const Tensor& tokens, double coef,
                   const Tensor& offsets) {
  std::vector<double> sums(static_cast<std::size_t>(logits.rows()));
  visit_accumulate("router", logits.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for(logits.rows(), token_grain(logits.cols()), [&](std::int64_t first, std::int64_t last) {
      for_tokens(offsets, first, last, [&](std::int64_t, std::int64_t t) {
        sums[static_cast<std::size_t>(t)] = static_cast<double>(log_sum(logits.row<T>(t), logits.cols()));
      });
    });
  });
  double sum = 0;
  for (const double lse : sums) sum += lse * lse;
  *loss.data<double>() = coef * sum / static_cast<double>(*tokens.data<std::int64_t>());
}

void add_counts(const Tensor& sum, const Tensor& counts) {
  for (std::int64_t i = 0; i < sum.numel(); ++i)
    sum.data<std::int64_t>()[i] += counts.data<std::int64_t>()[i];
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate, const UpdateGate& gate) {
  if (!goes(gate)) return;
  const std::int64_t n = bias.numel();
  const auto* c = counts.data<std::int64_t>();
  const std::int64_t sum = sum_of(c, n);
  visit_accumulate("update_expert_bias", bias.dtype(), [&]<class T>(TypeTag<T>) {
    T* b = bias.data<T>();
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t share = c[i] * n;
      const double move = share < sum ? rate : share > sum ? -rate : 0;
      finite = std::isfinite(b[i] += static_cast<T>(move)) && finite;
    }
    note_finite(gate, finite);
  });
}

}  // namespace nemocube::cpu

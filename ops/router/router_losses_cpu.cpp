#include <algorithm>
#include <array>

#include "ops/router/router_kernels.h"

namespace nemocube::cpu {
namespace {

// The loss coef E sum_i f_i P_i has f_i = c_i / (k counted), and P_i is the mean of p_ti over `tokens`
// tokens. Returns the derivative of the loss by p_ti, divided by c_i.
double count_factor(double coef, std::int64_t counted, std::int64_t tokens, const RouterOptions& o) {
  return coef * static_cast<double>(o.experts) /
         (static_cast<double>(o.top_k) * static_cast<double>(counted) * static_cast<double>(tokens));
}

// factors[q, i] += each counts_i
void add_factors(const Tensor& factors, std::int64_t q, const Tensor& counts, double each) {
  visit_accumulate("router", factors.dtype(), [&]<class T>(TypeTag<T>) {
    T* to = factors.row<T>(q);
    for (std::int64_t i = 0; i < counts.numel(); ++i)
      to[i] += static_cast<T>(each * static_cast<double>(counts.data<std::int64_t>()[i]));
  });
}

void scale_factors(const Tensor& factors, double scale) {
  visit_accumulate("router", factors.dtype(), [&]<class T>(TypeTag<T>) {
    T* to = factors.data<T>();
    for (std::int64_t i = 0; i < factors.numel(); ++i) to[i] *= static_cast<T>(scale);
  });
}

// Returns the loss whose factors are `each` counts_i for every token. Adds these factors to all rows of
// `factors`.
double microbatch_loss(const Tensor& factors, const Tensor& scores, const Tensor& counts, double each) {
  const Tensor own = Tensor::zeros({1, counts.numel()}, factors.dtype(), Device::cpu);
  add_factors(own, 0, counts, each);
  for (std::int64_t q = 0; q < factors.rows(); ++q) add_factors(factors, q, counts, each);
  return balance_loss(scores, own, Sequences::uniform(1, scores.rows()));
}

// The sum of the losses of all sequences; adds the factors of sequence q to row q of `factors`.
double sequence_loss(const Tensor& factors, const Tensor& scores, const Tensor& unbiased,
                     const Sequences& sequences, const RouterOptions& o) {
  std::int64_t filled = 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) filled += sequences.length(q) > 0 ? 1 : 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) {
    const std::int64_t tokens = sequences.length(q);
    if (tokens == 0) continue;
    const double coef = o.seq_aux_loss_coef / static_cast<double>(filled);
    add_factors(factors, q, router_counts(unbiased, o.experts, sequences.begin(q), sequences.end(q)),
                count_factor(coef, tokens, tokens, o));
  }
  return balance_loss(scores, factors, sequences);
}

void add_to_totals(RouterTotals& totals, const Tensor& counts, std::int64_t tokens) {
  if (!totals.counts.defined()) totals.counts = Tensor::zeros(counts.shape(), DType::i64, Device::cpu);
  check_shape("route: totals.counts", totals.counts, counts.shape());
  const std::int64_t experts = counts.numel();
  const Tensor both = Tensor::empty({experts + 1}, DType::i64, Device::cpu);
  both.narrow(0, 0, experts).copy_from(counts);
  both.data<std::int64_t>()[experts] = tokens;
  if (totals.sum_over_devices) totals.sum_over_devices(both);
  add_counts(totals.counts, both.narrow(0, 0, experts));
  totals.tokens += both.data<std::int64_t>()[experts];
}

// In the order of router_losses.
struct Losses {
  double aux = 0, seq_aux = 0, global_aux = 0, z = 0;
};

// Sets the balancing losses and returns the sum of their factors.
Tensor balance(Losses& losses, const Tensor& scores, const Tensor& unbiased, const RouterOptions& o,
               const Sequences& sequences, RouterTotals* totals) {
  const std::int64_t tokens = scores.rows();
  const Tensor factors = Tensor::zeros({sequences.count(), o.experts}, scores.dtype(), Device::cpu);
  if (o.seq_aux_loss_coef != 0) losses.seq_aux = sequence_loss(factors, scores, unbiased, sequences, o);
  const Tensor counts = router_counts(unbiased, o.experts, 0, tokens);
  if (o.aux_loss_coef != 0)
    losses.aux = microbatch_loss(factors, scores, counts, count_factor(o.aux_loss_coef, tokens, tokens, o));
  if (totals) {
    add_to_totals(*totals, counts, tokens);
    losses.global_aux = microbatch_loss(factors, scores, totals->counts,
                                        count_factor(o.global_aux_loss_coef, totals->tokens, tokens, o));
  }
  scale_factors(factors, o.aux_grad_scale);
  return factors;
}

void add_z_gradient(AuxGradient& aux, const Tensor& logits, const RouterOptions& o) {
  if (o.z_loss_coef == 0) return;
  aux.logits = logits;
  aux.z_factor = o.aux_grad_scale * o.z_loss_coef * 2 / static_cast<double>(logits.rows());
}

}  // namespace

AuxGradient replayed_gradient(const RouterChoice& choice, const Tensor& logits, const RouterOptions& o,
                              const Sequences& sequences) {
  AuxGradient aux;
  if (logits.rows() == 0) return aux;
  aux.factors = choice.balance_factors;
  aux.sequences = sequences;
  add_z_gradient(aux, logits, o);
  return aux;
}

AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                             const RouterOptions& o, const Sequences& sequences, RouterTotals* totals) {
  AuxGradient aux;
  const std::int64_t tokens = scores.rows();
  routing.losses = Tensor::zeros({std::ssize(router_losses)}, DType::f64, Device::cpu);
  if (tokens == 0) return aux;
  Losses losses;
  if (o.global_aux_loss_coef == 0) totals = nullptr;
  if (o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0 || totals) {
    Tensor unbiased = routing.choice.experts;
    if (bias.defined() || o.groups > 1) {
      unbiased = Tensor::empty(unbiased.shape(), DType::i32, Device::cpu);
      router_select(unbiased, scores, Tensor(), {.experts = o.experts, .top_k = o.top_k});
    }
    aux.sequences = sequences;
    aux.factors = balance(losses, scores, unbiased, o, sequences, totals);
    routing.choice.balance_factors = aux.factors;
  }
  if (o.z_loss_coef != 0) {
    double sum = 0;
    for (const double lse : log_sums(logits)) sum += lse * lse;
    losses.z = o.z_loss_coef * sum / static_cast<double>(tokens);
  }
  const std::array values{losses.aux, losses.seq_aux, losses.global_aux, losses.z};
  std::ranges::copy(values, routing.losses.data<double>());
  add_z_gradient(aux, logits, o);
  return aux;
}

}  // namespace nemocube::cpu

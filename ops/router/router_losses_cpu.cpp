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

// What the auxiliary losses count of a microbatch, over all ranks that share it.
class Microbatch {
 public:
  // `parts`: the rank's rows of each sequence, or all its rows as one part. Without an unbiased choice only tokens
  // are counted.
  Microbatch(const Tensor& unbiased, const Sequences& parts, const RouterOptions& o)
      : experts_(unbiased.defined() ? o.experts : 0),
        table_(Tensor::zeros({parts.count(), experts_ + 1}, DType::i64, Device::cpu)) {
    for (std::int64_t q = 0; q < parts.count(); ++q) {
      if (experts_ > 0) counts(q).copy_from(router_counts(unbiased, experts_, parts.begin(q), parts.end(q)));
      table_.row<std::int64_t>(q)[experts_] = parts.length(q);
    }
    if (o.sum_over_peers && table_.numel() > 0) o.sum_over_peers(table_);
  }
  // Of part q: the tokens, and how many of them chose each expert [E].
  std::int64_t tokens(std::int64_t q) const { return table_.row<std::int64_t>(q)[experts_]; }
  Tensor counts(std::int64_t q) const { return table_.select(q).narrow(0, 0, experts_); }

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (std::int64_t q = 0; q < table_.rows(); ++q) sum += tokens(q);
    return sum;
  }
  Tensor counts() const {
    const Tensor sum = Tensor::zeros({experts_}, DType::i64, Device::cpu);
    for (std::int64_t q = 0; q < table_.rows(); ++q) add_counts(sum, counts(q));
    return sum;
  }

 private:
  std::int64_t experts_;
  Tensor table_;  // [parts, experts + 1]
};

// The sum of the losses of all sequences; adds the factors of sequence q to row q of `factors`.
double sequence_loss(const Tensor& factors, const Tensor& scores, const Microbatch& whole,
                     const Sequences& sequences, const RouterOptions& o) {
  std::int64_t filled = 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) filled += whole.tokens(q) > 0 ? 1 : 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) {
    const std::int64_t tokens = whole.tokens(q);
    if (tokens == 0) continue;
    const double coef = o.seq_aux_loss_coef / static_cast<double>(filled);
    add_factors(factors, q, whole.counts(q), count_factor(coef, tokens, tokens, o));
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
Tensor balance(Losses& losses, const Tensor& scores, const Microbatch& whole, const RouterOptions& o,
               const Sequences& sequences, const RouterTotals* totals) {
  const Tensor factors = Tensor::zeros({sequences.count(), o.experts}, scores.dtype(), Device::cpu);
  const std::int64_t tokens = whole.tokens();
  if (o.seq_aux_loss_coef != 0) losses.seq_aux = sequence_loss(factors, scores, whole, sequences, o);
  if (o.aux_loss_coef != 0)
    losses.aux =
        microbatch_loss(factors, scores, whole.counts(), count_factor(o.aux_loss_coef, tokens, tokens, o));
  if (totals)
    losses.global_aux = microbatch_loss(factors, scores, totals->counts,
                                        count_factor(o.global_aux_loss_coef, totals->tokens, tokens, o));
  scale_factors(factors, o.aux_grad_scale);
  return factors;
}

// The choice that the balancing losses count.
Tensor unbiased_choice(const Tensor& experts, const Tensor& scores, const Tensor& bias,
                       const RouterOptions& o) {
  if (!bias.defined() && o.groups == 1 && !o.balanced) return experts;
  const Tensor unbiased = Tensor::empty(experts.shape(), DType::i32, Device::cpu);
  router_select(unbiased, scores, Tensor(), {.experts = o.experts, .top_k = o.top_k});
  return unbiased;
}

void add_z_gradient(AuxGradient& aux, const Tensor& logits, std::int64_t tokens, const RouterOptions& o) {
  if (o.z_loss_coef == 0) return;
  aux.logits = logits;
  aux.z_factor = o.aux_grad_scale * o.z_loss_coef * 2 / static_cast<double>(tokens);
}

}  // namespace

AuxGradient replayed_gradient(const RouterChoice& choice, const Tensor& logits, const RouterOptions& o,
                              const Sequences& sequences) {
  AuxGradient aux;
  if (logits.rows() == 0) return aux;
  aux.factors = choice.balance_factors;
  aux.sequences = sequences;
  add_z_gradient(aux, logits, choice.tokens, o);
  return aux;
}

AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                             const RouterOptions& o, const Sequences& sequences, RouterTotals* totals) {
  AuxGradient aux;
  routing.losses = Tensor::zeros({std::ssize(router_losses)}, DType::f64, Device::cpu);
  if (o.global_aux_loss_coef == 0) totals = nullptr;
  const bool counted = o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0, balancing = counted || totals;
  if (!balancing && o.z_loss_coef == 0) return aux;

  // Ranks without rows send messages too.
  const Sequences all_rows = Sequences::uniform(1, scores.rows());
  const Tensor unbiased = balancing ? unbiased_choice(routing.choice.experts, scores, bias, o) : Tensor();
  const Microbatch whole(counted ? unbiased : Tensor(), o.seq_aux_loss_coef != 0 ? sequences : all_rows, o);
  if (totals) add_to_totals(*totals, router_counts(unbiased, o.experts, 0, scores.rows()), scores.rows());
  if (scores.rows() == 0) return aux;

  Losses losses;
  routing.choice.tokens = whole.tokens();
  if (balancing) {
    aux.sequences = sequences;
    aux.factors = balance(losses, scores, whole, o, sequences, totals);
    routing.choice.balance_factors = aux.factors;
  }
  if (o.z_loss_coef != 0) {
    double sum = 0;
    for (const double lse : log_sums(logits)) sum += lse * lse;
    losses.z = o.z_loss_coef * sum / static_cast<double>(routing.choice.tokens);
  }
  const std::array values{losses.aux, losses.seq_aux, losses.global_aux, losses.z};
  std::ranges::copy(values, routing.losses.data<double>());
  add_z_gradient(aux, logits, routing.choice.tokens, o);
  return aux;
}

}  // namespace nemocube::cpu

#include "ops/router/router_losses.h"

namespace nemocube {
namespace {

/// The parts of the tokens that have factors of their own.
struct Parts {
  Parts(const Sequences& sequences, const RouterOptions& o, Device device)
      : all(sequences.token_rows_on(device)), offsets(all) {
    if (o.seq_aux_loss_coef == 0) return;
    count = sequences.count() - (sequences.has_spare_rows() ? 1 : 0);
    offsets = sequences.on(device).offsets.narrow(0, 0, count + 1);
  }
  Tensor all;      // tokens, as one part; undefined: all rows
  Tensor offsets;  // undefined: all rows are one part
  std::int64_t count = 1;
};

/// The choice that the balancing losses count.
Tensor unbiased_choice(const Tensor& experts, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                       const RouterOptions& o) {
  if (!bias.defined() && o.groups == 1 && !o.balanced) return experts;
  const Tensor unbiased = Tensor::empty(experts.shape(), DType::i32, experts.device());
  const bool softmax = o.scores == RouterScores::softmax;
  router_select(unbiased, softmax ? logits : scores, Tensor(), {.experts = o.experts, .top_k = o.top_k});
  return unbiased;
}

/// How often each of `count` experts appears in `experts` [T, k]: [count + 1] i64, T is the last.
Tensor count_experts(const Tensor& experts, std::int64_t count, const Parts& parts) {
  const Tensor table = Tensor::empty({1, count + 1}, DType::i64, experts.device());
  router_count(table, experts, parts.all);
  return table.select(0);
}

void add_to_totals(RouterTotals& totals, const Tensor& unbiased, std::int64_t experts, const Parts& parts) {
  const Tensor own = count_experts(unbiased, experts, parts);
  if (!totals.sums.defined()) totals.sums = Tensor::zeros(own.shape(), DType::i64, own.device());
  check_shape("route: totals.sums", totals.sums, own.shape());
  if (totals.sum_over_devices) totals.sum_over_devices(own);
  add_counts(totals.sums, own);
}

/// c and T of each part, over all ranks that share the microbatch; T alone where no loss needs c.
Tensor count_microbatch(const Tensor& choice, const Parts& parts, const RouterOptions& o) {
  const bool counted = o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0;
  const Tensor table = Tensor::empty({parts.count, counted ? o.experts + 1 : 1}, DType::i64, choice.device());
  router_count(table, choice, parts.offsets);
  if (o.sum_over_peers && table.numel() > 0) o.sum_over_peers(table);
  return table;
}

Tensor sum_of_parts(const Tensor& table) {
  if (table.rows() == 1) return table.select(0);
  const Tensor sum = Tensor::empty({table.cols()}, DType::i64, table.device());
  router_sum_parts(sum, table);
  return sum;
}

/// Sets the balancing losses, entries of `losses`, and returns the sum of their factors.
Tensor balance(const Tensor& losses, const Tensor& scores, const Tensor& table, const Tensor& whole,
               const Parts& parts, const RouterOptions& o, const RouterTotals* totals) {
  const auto factors = [&](std::int64_t rows) {
    return Tensor::empty({rows, o.experts}, scores.dtype(), scores.device());
  };
  BalanceFactors f;
  f.table = table;
  f.whole = whole;
  f.sum = factors(parts.count);
  if (o.seq_aux_loss_coef != 0) f.sequences = factors(parts.count);
  if (o.aux_loss_coef != 0) f.microbatch = factors(1);
  if (totals) {
    f.totals = totals->sums;
    f.global = factors(1);
  }
  router_balance(f, o);
  const auto loss = [&](std::int64_t kind) { return losses.narrow(0, kind, 1); };
  if (f.microbatch) router_balance_loss(loss(0), scores, f.microbatch, parts.all);
  if (f.sequences) router_balance_loss(loss(1), scores, f.sequences, parts.offsets);
  if (f.global) router_balance_loss(loss(2), scores, f.global, parts.all);
  return f.sum;
}

void add_z_gradient(AuxGradient& aux, const Tensor& logits, const Tensor& tokens, const RouterOptions& o) {
  if (o.z_loss_coef == 0) return;
  aux.logits = logits;
  aux.tokens = tokens;
  aux.z_scale = o.aux_grad_scale * o.z_loss_coef * 2;
}

}  // namespace

AuxGradient replayed_gradient(const RouterChoice& choice, const Tensor& logits, const RouterOptions& o,
                              const Sequences& sequences) {
  AuxGradient aux;
  if (logits.rows() == 0) return aux;
  aux.offsets = Parts(sequences, o, logits.device()).offsets;
  aux.factors = choice.balance_factors;
  add_z_gradient(aux, logits, choice.tokens, o);
  return aux;
}

AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                             const RouterOptions& o, const Sequences& sequences, RouterTotals* totals) {
  AuxGradient aux;
  if (o.global_aux_loss_coef == 0) totals = nullptr;
  const bool balancing = o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0 || totals;
  if (!balancing && o.z_loss_coef == 0) return aux;

  // Ranks without rows send messages too.
  const Tensor& chosen = routing.choice.experts;
  const Tensor unbiased = balancing ? unbiased_choice(chosen, logits, scores, bias, o) : chosen;
  const Parts parts(sequences, o, logits.device());
  const Tensor table = count_microbatch(unbiased, parts, o);
  if (totals) add_to_totals(*totals, unbiased, o.experts, parts);
  if (logits.rows() == 0) return aux;

  aux.offsets = parts.offsets;
  const Tensor whole = sum_of_parts(table);
  routing.choice.tokens = whole.narrow(0, whole.numel() - 1, 1);
  if (balancing) {
    aux.factors = balance(routing.losses, scores, table, whole, parts, o, totals);
    routing.choice.balance_factors = aux.factors;
  }
  if (o.z_loss_coef != 0)
    router_z_loss(routing.losses.narrow(0, 3, 1), logits, routing.choice.tokens, o.z_loss_coef, parts.all);
  add_z_gradient(aux, logits, routing.choice.tokens, o);
  return aux;
}

}  // namespace nemocube

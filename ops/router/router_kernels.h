#pragma once
#include "core/kernel.h"
#include "ops/router/router.h"

/// Kernels of the router. `logits`, `scores` and `dlogits` are [T, E] contiguous, f32 or f64; other floating
/// operands have the same dtype, unless they say f64. The tokens are divided among the threads.
///
/// Tokens form parts: those of part q are [offsets[q], offsets[q + 1]), offsets [parts + 1] i64. Where
/// `offsets` are undefined, all tokens are one part. Rows beyond the last part are spare: no count and no
/// loss has them, and their experts come in turn, as with options.balanced, so that they load all alike. A
/// sum over tokens is formed in f64, in an order that depends on the number of rows alone; on the CPU from
/// the first to the last.
namespace nemocube {

/// The balancing losses of one microbatch. Factors are d loss / d p_ti for the tokens t of each part.
struct BalanceFactors {
  Tensor table;   ///< [parts, E + 1] i64: c and T of each part, over all ranks; [1, 1] with T alone
  Tensor whole;   ///< [E + 1] or [1] i64: the sum of the rows of `table`
  Tensor totals;  ///< [E + 1] i64: C and N
  // Factors of each loss; undefined for a loss without coefficient.
  Tensor sequences;   ///< [parts, E]: of seq_aux_loss
  Tensor microbatch;  ///< [1, E]: of aux_loss
  Tensor global;      ///< [1, E]: of global_aux_loss
  Tensor sum;         ///< [parts, E]: all together, times aux_grad_scale
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&table, &whole, &totals, &sequences, &microbatch, &global, &sum}) fn(*t);
  }
};

/// What the backward pass adds to dlogits besides the gradient of the weights.
struct AuxGradient {
  Tensor factors;      ///< [parts, E]: BalanceFactors::sum; undefined: none
  Tensor offsets;      ///< of the parts of `factors`, or of all tokens
  Tensor logits;       ///< for z-loss; undefined: none
  Tensor tokens;       ///< [1] i64: T of the microbatch, for z-loss
  double z_scale = 0;  ///< z-loss adds z_scale / tokens lse_t softmax(l_t)_i to dl_ti
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&factors, &offsets, &logits, &tokens}) fn(*t);
  }
};

/// Whether softmax logits are selected as they are, because nothing is added to their scores.
inline bool selects_by_logits(const RouterOptions& o, const Tensor& bias) {
  return o.scores == RouterScores::softmax && !bias.defined() && o.top_groups == o.groups;
}
/// Whether there are losses of the balance between experts.
inline bool balances(const RouterOptions& o) {
  return o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0 || o.global_aux_loss_coef != 0;
}
/// Whether the backward pass reads the scores of all experts.
inline bool backward_uses_scores(const RouterOptions& o) {
  return o.scores == RouterScores::sigmoid || !o.normalise || balances(o);
}
/// Whether it reads the weights.
inline bool backward_uses_weights(const RouterOptions& o) {
  return o.scores == RouterScores::softmax && o.normalise;
}
/// Whether anything reads the scores of all experts.
inline bool uses_scores(const RouterOptions& o, const Tensor& bias) {
  return backward_uses_scores(o) || !selects_by_logits(o, bias);
}

namespace cpu {

/// scores = sigmoid or softmax of the logits, undefined where `uses_scores` says so. Unless the experts are
/// `chosen` already, sets them as router_select does, and adds to counts [E] i64 how often each one is among
/// them. weights [T, k] of the experts. `offsets` are of one part: all tokens.
void router_choose(const Tensor& scores, const Tensor& experts, const Tensor& weights, const Tensor& counts,
                   const Tensor& logits, const Tensor& bias, const RouterOptions& options, bool chosen,
                   const Tensor& offsets);

/// Sets `experts` [T, k] i32 to the choices, ascending: the largest scores + bias (scores alone when `bias`
/// is undefined) within the best groups; or, with options.balanced, experts in turn. Scores are as they are,
/// whatever options.scores says, and may be logits.
void router_select(const Tensor& experts, const Tensor& scores, const Tensor& bias,
                   const RouterOptions& options);

/// Sets dlogits from the gradient of the weights (undefined: zero) and the auxiliary losses. Scores and
/// weights are undefined where `backward_uses_scores` and `backward_uses_weights` say so.
void router_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& weights, const Tensor& experts, const RouterOptions& options,
                     const AuxGradient& aux);

/// Sets row q of `table` [parts, n + 1] i64: how often each of n experts appears among those of part q, and
/// the number of its tokens. n may be 0.
void router_count(const Tensor& table, const Tensor& experts, const Tensor& offsets);

/// sum [n] i64 = the sum of the rows of `table` [parts, n].
void router_sum_parts(const Tensor& sum, const Tensor& table);

/// Sets the factors of those losses whose tensors are defined, and their sum. Each term of a factor is formed
/// in f64 and rounded to the dtype of the scores; the terms are added in the order of BalanceFactors.
void router_balance(const BalanceFactors& factors, const RouterOptions& options);

/// loss [1] f64 = sum_ti factors[q, i] p_ti, over the tokens t of each part q.
void router_balance_loss(const Tensor& loss, const Tensor& scores, const Tensor& factors,
                         const Tensor& offsets);

/// loss [1] f64 = coef / tokens sum_t (log sum_i exp l_ti)^2, tokens [1] i64, over the tokens t of all parts
void router_z_loss(const Tensor& loss, const Tensor& logits, const Tensor& tokens, double coef,
                   const Tensor& offsets);

/// As in ops/router/router.h.
void add_counts(const Tensor& sum, const Tensor& counts);
void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate, const UpdateGate& gate);

}  // namespace cpu

inline const Kernel<cpu::router_choose> router_choose("router/choose");
inline const Kernel<cpu::router_select> router_select("router/select");
inline const Kernel<cpu::router_backward> router_backward("router/backward");
inline const Kernel<cpu::router_count> router_count("router/count");
inline const Kernel<cpu::router_sum_parts> router_sum_parts("router/sum_parts");
inline const Kernel<cpu::router_balance> router_balance("router/balance");
inline const Kernel<cpu::router_balance_loss> router_balance_loss("router/balance_loss");
inline const Kernel<cpu::router_z_loss> router_z_loss("router/z_loss");
inline const Kernel<cpu::add_counts> add_counts_kernel("router/add_counts");
inline const Kernel<cpu::update_expert_bias> update_expert_bias_kernel("router/update_expert_bias");

}  // namespace nemocube

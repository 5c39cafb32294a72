#pragma once
#include <vector>

#include "core/kernel.h"
#include "ops/router/router.h"

/// Kernels of the router. `logits`, `scores` and `dlogits` are [T, E] contiguous, f32 or f64; other floating
/// operands have the same dtype. The tokens are divided among the threads.
namespace nemocube {

/// What the backward pass adds to dlogits besides the gradient of the weights.
struct AuxGradient {
  Tensor factors;       ///< [sequences, E]: d loss / d p_ti, as balance_loss; undefined: none
  Sequences sequences;  ///< of `factors`
  Tensor logits;        ///< for z-loss; undefined: none
  double z_factor = 0;  ///< z-loss adds z_factor lse_t softmax(l_t)_i to dl_ti
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(factors);
    fn(logits);
  }
};

namespace cpu {

/// scores = sigmoid(logits)
void router_scores(const Tensor& scores, const Tensor& logits);

/// Sets `experts` [T, k] i32 to the choices, ascending: the largest scores + bias (scores alone when `bias`
/// is undefined) within the best groups; or, with options.balanced, experts in turn.
void router_select(const Tensor& experts, const Tensor& scores, const Tensor& bias,
                   const RouterOptions& options);

/// weights [T, k] of the chosen experts.
void router_weights(const Tensor& weights, const Tensor& scores, const Tensor& experts,
                    const RouterOptions& options);

/// How often each of `count` experts appears in rows [begin, end) of `experts`: [count] i64.
Tensor router_counts(const Tensor& experts, std::int64_t count, std::int64_t begin, std::int64_t end);

/// Adds up sum_i factors[q, i] p_ti over the tokens t of each sequence q; factors [sequences, E].
double balance_loss(const Tensor& scores, const Tensor& factors, const Sequences& sequences);

/// (log sum_i exp l_ti) for each token.
std::vector<double> log_sums(const Tensor& logits);

/// Sets dlogits from the gradient of the weights (undefined: zero) and the auxiliary losses.
void router_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& experts, const RouterOptions& options, const AuxGradient& aux);

/// Sets the losses of `routing`, whose experts are chosen, and what a replay needs, as route() defines them;
/// returns what the backward pass adds for them. logits and scores [T, E].
AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                             const RouterOptions& options, const Sequences& sequences, RouterTotals* totals);
/// The same gradient in a replay, from the factors of the first pass.
AuxGradient replayed_gradient(const RouterChoice& choice, const Tensor& logits, const RouterOptions& options,
                              const Sequences& sequences);

}  // namespace cpu

inline const Kernel<cpu::router_scores> router_scores("router/scores");
inline const Kernel<cpu::router_select> router_select("router/select");
inline const Kernel<cpu::router_weights> router_weights("router/weights");
inline const Kernel<cpu::router_backward> router_backward("router/backward");

}  // namespace nemocube

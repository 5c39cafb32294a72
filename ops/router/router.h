#pragma once
#include <algorithm>
#include <array>
#include <functional>

#include "core/autograd.h"
#include "ops/sequences.h"
#include "ops/update_gate.h"

/// Mixture-of-experts routing: which k of E experts each token goes to, and with what weight.
namespace nemocube {

/// What makes scores of logits: each one alone, or all of a token together.
enum class RouterScores { sigmoid, softmax };

struct RouterOptions {
  std::int64_t experts = 0, top_k = 1;
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;  ///< experts come from this many best groups
  RouterScores scores = RouterScores::sigmoid;
  bool normalise = true;  ///< weights of a token add up to `scaling`
  double scaling = 1;     ///< routed_scaling_factor
  double aux_loss_coef = 0, seq_aux_loss_coef = 0, global_aux_loss_coef = 0, z_loss_coef = 0;
  double aux_grad_scale = 1;  ///< factor on the gradient of the auxiliary losses, not on their values
  /// Tokens are spread evenly whatever their scores are, for measurements of speed (fake_balanced_gate of
  /// NVIDIA NeMo AutoModel): choice j of token t goes to expert (t k + j) mod E. t counts the rows of this
  /// call from 0.
  bool balanced = false;
  /// Sums an i64 tensor on the device of x in place over the ranks that share the tokens of a microbatch;
  /// absent: this rank has all.
  std::function<void(const Tensor&)> sum_over_peers = {};
};

/// An auxiliary loss: its name and its coefficient.
struct RouterLoss {
  using Coefficient = double RouterOptions::*;
  const char* name;
  Coefficient coef;
};
/// In the order of Routing::losses.
inline constexpr std::array<RouterLoss, 4> router_losses{{
    {"aux_loss", &RouterOptions::aux_loss_coef},
    {"seq_aux_loss", &RouterOptions::seq_aux_loss_coef},
    {"global_aux_loss", &RouterOptions::global_aux_loss_coef},
    {"z_loss", &RouterOptions::z_loss_coef},
}};

/// Whether any auxiliary loss has a coefficient.
inline bool has_losses(const RouterOptions& o) {
  return std::ranges::any_of(router_losses, [&](const RouterLoss& loss) { return o.*loss.coef != 0; });
}

/// Sums over the microbatches so far, for global_aux_loss; a new object starts from zero.
struct RouterTotals {
  Tensor
      sums;  ///< [E + 1] i64 on the device of x: of the c below, and of T; undefined before the first microbatch
  /// Sums a tensor [E + 1] i64 on the device of x, the c and T of the rows of a call, in place over all
  /// devices that hold tokens of the same step, also devices that share a microbatch. Absent: this device
  /// alone. Called also where there are no rows.
  std::function<void(const Tensor&)> sum_over_devices = {};
};

/// The results of the first pass that a replay of route() reuses, on the device of x.
struct RouterChoice {
  Tensor experts;  ///< [T, k] i32, ascending within a token
  /// [sequences but the one of spare rows, E] f32 (f64): d(auxiliary losses but z_loss) /
  /// dp_ti times aux_grad_scale, for the tokens t of each sequence; [1, E] without
  /// seq_aux_loss; undefined when there are none.
  Tensor balance_factors;
  Tensor tokens{};  ///< [1] i64: T of the microbatch, for z-loss; undefined without losses
};

/// Sums that route() forms over the tokens of a microbatch, on the device of x. Several layers have one more
/// dimension in front: one launch then makes the zeros of all layers, and one launch for each tensor adds all
/// layers to the sums of a step.
struct RouterSums {
  Tensor counts;  ///< [E] i64
  Tensor losses;  ///< [4] f64
  /// counts [layers, E] and losses [layers, 4], all 0. E: the most experts that a layer has.
  static RouterSums zeros(std::int64_t layers, std::int64_t experts, Device device);
  /// Of a layer with `experts` of the E experts.
  RouterSums layer(std::int64_t i, std::int64_t experts) const {
    return {counts.select(i).narrow(0, 0, experts), losses.select(i)};
  }
};

/// All on the device of x.
struct Routing {
  Var weights;  ///< [T, k] f32 (f64)
  RouterChoice choice;
  Tensor counts;  ///< [E] i64: tokens that chose each expert; undefined in a replay
  /// The auxiliary losses times their coefficients [4] f64, in the order of router_losses; a loss whose
  /// coefficient is 0 is 0. Where ranks share a microbatch, the microbatch's losses are the sums over these
  /// ranks. Undefined in a replay.
  Tensor losses;
};

/// Routing by scores, with a selection bias:
///
///   l = gate x        sigmoid: s_i = 1 / (1 + exp -l_i)        softmax: s_i = exp l_i / sum_j exp l_j, all E
///   t = s + correction_bias                                    (t serves selection only)
///   groups:  group g holds experts [g E / G, (g + 1) E / G); its score is the sum of its two largest t (of
///            its one t where it has one expert); the top_groups best groups stay, others count as -inf
///   experts: the top_k largest t in these groups; ties, among experts and groups, go to the lowest index
///   weights: w_j = s_j scaling; with normalise
///            sigmoid: w_j = s_j / (sum over the chosen s + 1e-20) scaling
///            softmax: w_j = exp l_j / (sum over the chosen exp l) scaling. This is s_j over the sum of the
///            chosen s, and holds also where these s are too small for f32.
/// Softmax scores without correction_bias and with all groups are selected by l. Their order is that of s,
/// and logits whose s are equal by rounding have an order too.
/// With `balanced` the experts of a token follow from its position alone, and nothing else changes. Spare
/// rows of the sequences get experts as with `balanced`; counts, totals and losses leave them out.
///
/// shapes     x [T, h], gate [E, h], correction_bias [E] or undefined (none); T, h >= 0
/// layout     row strides free
/// dtypes     x and gate f32 or bf16, converted to f32 where they differ, or both f64; correction_bias,
///            weights and all arithmetic f32 (f64). A token with NaN scores still gets k different experts.
/// backward   dx and dgate; no gradient for the bias or through the selection. With n_j = w_j / scaling, and
///            zeros for experts that are not chosen where a line has j:
///              sigmoid  ds_j = scaling dw_j; with normalise
///                       ds_j = scaling (dw_j - sum over the chosen dw n) / (sum over the chosen s + 1e-20)
///                       dl = ds s (1 - s)
///              softmax  ds_j = scaling dw_j, dl_i = s_i (ds_i - sum over all ds s); with normalise
///                       dl_j = scaling n_j (dw_j - sum over the chosen dw n)
///            Keeps x, gate, and l for z-loss; s [T, E], but of softmax with normalise w [T, k], and s only
///            for losses by s.
/// errors     Error for other shapes, dtypes or sequences, or options that cannot hold (k > experts left by
///            the groups, groups that do not divide E), totals of another E, or a replay of other tokens
/// repeat     as matmul; everything after the logits has the same bits for any number of threads
/// host       reads nothing
///
/// Auxiliary losses, with p_ti = s_ti / (sum over all i of s_ti + 1e-20), of softmax s_ti, and c_i the number
/// of tokens whose top_k by unbiased s, groups ignored, include i (as Megatron counts; not `counts`, and no
/// gradient through c):
///   aux_loss      aux_loss_coef E / (k T^2) sum_i c_i sum_t p_ti over all T tokens
///   seq_aux_loss  the same with seq_aux_loss_coef over each sequence, averaged over the non-empty sequences
///   global_aux_loss
///                 global_aux_loss_coef E / (k N T) sum_i C_i sum_t p_ti, where C and N are `totals`, to
///                 which this call has added its c and T; 0 without `totals`. Equal to Megatron's, which
///                 takes means over microbatches, when microbatches are of equal size.
///   z_loss        z_loss_coef mean_t (log sum_i exp l_ti)^2
/// The backward pass always adds the gradient of the auxiliary losses times aux_grad_scale, even when no
/// gradient reaches the weights: once for each recorded forward. Under an activation checkpoint the recorded
/// forward is the replay.
///
/// The tokens of a microbatch may be divided over ranks (`sum_over_peers`). Each rank then routes its own
/// rows, and `sequences` has all sequences of the microbatch, in each the rows of this rank, perhaps none. c,
/// T and the count of empty sequences are of the whole microbatch. Sums over t run over the rank's rows: the
/// returned losses are its share of the microbatch's losses, and its gradients are derivatives of the
/// microbatch's losses by its rows. All ranks make the same calls, also ranks without rows.
/// messages   for a microbatch one sum i64 over the ranks that share it, none where all coefficients are 0
///            (the coefficient of global_aux_loss counts as 0 without `totals`):
///              [sequences, E + 1]  with seq_aux_loss: c and T of each sequence
///              [1, E + 1]          with aux_loss and without seq_aux_loss
///              [1, 1]              otherwise: T
///            then the sum of `totals` for global_aux_loss; none in a replay or in backward
///
/// Counts and losses are added to `sums`, zeros of one layer on the device of x, where given.
///
/// With `replay`, the choice of an earlier call with the same operands, nothing is selected or counted again:
/// weights and gradients have the same bits, whatever has been added to `totals` since.
Routing route(Context& ctx, const Var& x, const Var& gate, const Tensor& correction_bias,
              const RouterOptions& options, const Sequences& sequences, RouterTotals* totals = nullptr,
              const RouterChoice* replay = nullptr, const RouterSums& sums = {});

/// sum_i <- sum_i + counts_i, both i64 of the same shape.
void add_counts(const Tensor& sum, const Tensor& counts);

/// Balancing without an auxiliary loss, once for each optimizer step:
///   bias_i <- bias_i + rate sign(mean(counts) - counts_i),   sign(0) = 0, compared exactly
/// unless the gate is closed (UpdateGate; its grad_scale has no effect). bias [E] f32 or f64; counts [E] i64,
/// summed over all tokens of the step. Error otherwise.
/// (Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024.)
void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate, const UpdateGate& gate);

}  // namespace nemocube

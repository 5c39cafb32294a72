#pragma once
#include <optional>

#include "model/blocks/adapter.h"
#include "model/blocks/mlp/mlp.h"
#include "model/blocks/moe/expert_dispatcher.h"
#include "model/norm.h"
#include "ops/router/router.h"

namespace nemocube {

/// The record of an MoE block about one microbatch.
struct MoeRecord final : MixerRecord {
  explicit MoeRecord(std::int64_t number_of_experts) : experts(number_of_experts) {}
  std::int64_t experts;                ///< of the block
  std::optional<RouterChoice> choice;  ///< absent before the forward pass
  /// Tokens sent to each expert, and the auxiliary losses or a share of them, see Routing::losses.
  /// Where a caller sets zeros here before the forward pass, the router adds to these tensors.
  /// Otherwise the router makes its own tensors.
  RouterSums sums;
  Tensor host;  ///< see ExpertDispatcher::dispatch
};

/// Mixture of experts (docs/moe.md). A router chooses k of E experts for every token; the shared expert, in
/// models that have one, sees every token:
///     y = fc2(sum_j w_j expert_j(fc1(x))) + g(x) shared(x)
/// fc1 and fc2 exist only in models with a latent width; g(x) = sigmoid(shared_expert_gate x), or 1. An
/// expert is down relu2(up r), or with a gate down (phi(gate r) * (up r)).
///
/// With MoeConfig::own_norms x has no norm yet, and with N_a, N_b, ... RMSNorms of their own weights
///     y = N_b(sum_j w_j f_j expert_j(N_a x)) + N_d(shared(N_c x)),
/// where the router reads h^-1/2 N_e x and f is gate.per_expert_scale. The weights of N_a to N_e are those of
/// experts_norm, experts_post_norm, shared_norm, shared_post_norm, and gate.scale. Source: gemma4.
class MoeMixer final : public Mixer {
 public:
  MoeMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;
  std::unique_ptr<MixerRecord> make_record() const override;

  /// Coefficients of the auxiliary losses (all off by default) and the scale of their gradients.
  RouterOptions& router() { return router_; }
  /// Null in models without one.
  const Parameter* correction_bias() const { return bias_; }
  /// Totals for the global auxiliary loss over the recorded passes since reset_totals(); empty when the
  /// loss's coefficient is 0. reset_totals() is to be called once for each optimizer step. It keeps the
  /// memory of the totals, so that the same work can be queued again.
  const RouterTotals& totals() const { return totals_; }
  void reset_totals() {
    if (totals_.sums) totals_.sums.zero();
  }
  /// See RouterTotals::sum_over_devices.
  void sum_totals_over_devices(std::function<void(const Tensor&)> sum) {
    totals_.sum_over_devices = std::move(sum);
  }
  /// The rows that this device routes, where several devices share the rows of a microbatch. The transform
  /// points "<moe>.routed.input" and "<moe>.routed.output" then cut and join them, and
  /// RouterOptions::sum_over_peers sums over these devices.
  void set_rows(RowCut rows) { rows_ = std::move(rows); }
  void set_dispatcher(std::unique_ptr<ExpertDispatcher> dispatcher) { dispatcher_ = std::move(dispatcher); }

 private:
  /// Applies one weight of the experts, and its adapter, to the experts' rows.
  static Var through_experts(Context& ctx, const Var& rows, const DispatchedRows& sent,
                             const Parameter& weight, const Adapter& adapter);
  /// Norms of MoeConfig::own_norms.
  struct OwnNorms {
    Norm experts, experts_post, shared, shared_post;
    const Parameter *router_scale, *expert_scale;
    double eps, hidden_factor;
  };
  Routing choose_experts(Context& ctx, const Var& x, const MixerCall& call);
  /// What the shared expert returns, with its norms and its gate.
  Var through_shared(Context& ctx, const Var& x, const MixerCall& call);
  Var activate(Context& ctx, Var inner) const;

  RouterOptions router_;
  std::optional<GateActivation> activation_;  // of gated experts
  const Parameter *gate_, *bias_, *in_, *down_;
  Adapter in_adapter_, down_adapter_;
  Transform routed_input_, routed_output_, experts_output_;
  RowCut rows_;
  std::optional<Linear> fc1_latent_, fc2_latent_;
  std::optional<MlpMixer> shared_;
  std::optional<Linear> shared_gate_;
  std::optional<OwnNorms> norms_;
  std::unique_ptr<ExpertDispatcher> dispatcher_;
  RouterTotals totals_;
};

}  // namespace nemocube

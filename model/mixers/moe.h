#pragma once
#include <optional>

#include "model/mixers/mixer.h"
#include "model/mixers/mlp.h"
#include "ops/router/router.h"

namespace nemocube {

/// Mixture of experts (docs/moe.md). A sigmoid router chooses k of E squared-ReLU experts for every token;
/// the shared expert sees every token:
///     y = fc2(sum_j w_j expert_j(fc1(x))) + shared(x),  fc1 and fc2 only in models with a latent width
class MoeMixer final : public Mixer {
 public:
  MoeMixer(const NemotronHConfig& config, ParameterStore& store, const std::string& name);
  Var forward(Context& ctx, const Var& x, const Sequences& sequences, MixerState* state) override;

  /// Coefficients of the auxiliary losses (all off by default) and the scale of their gradients.
  RouterOptions& router() { return router_; }
  /// Sums of the auxiliary losses over the training passes since the last reset_counts().
  struct AuxLosses {
    double aux = 0, seq_aux = 0, global_aux = 0, z = 0;
  };
  const AuxLosses& aux_losses() const { return aux_losses_; }
  /// Tokens sent to each expert in training passes since the last reset [E].
  const Tensor& counts() const { return counts_; }
  /// Totals for the global auxiliary loss over the same passes; empty when its coefficient is 0.
  const RouterTotals& totals() const { return totals_; }
  const Parameter& correction_bias() const { return *bias_; }
  /// Sets counts, totals and sums of losses back to zero; to be called once for each optimizer step.
  void reset_counts();

 private:
  RouterOptions router_;
  const Parameter *gate_, *bias_, *up_, *down_;
  std::optional<Linear> fc1_latent_, fc2_latent_;
  MlpMixer shared_;
  Tensor counts_;
  RouterTotals totals_;
  AuxLosses aux_losses_;
};

}  // namespace nemocube

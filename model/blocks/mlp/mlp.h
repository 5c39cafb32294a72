#pragma once
#include <optional>

#include "model/blocks/linear.h"
#include "model/blocks/mlp/mlp_config.h"

namespace nemocube {

/// down_proj(phi(up_proj x)), or with a gate down_proj(phi(gate_proj x) * up_proj x), and the multipliers of
/// MlpConfig. The mixer of an MLP block, and the shared expert of an MoE block.
class MlpMixer final : public Mixer {
 public:
  /// The config says whether there is a gate, and which phi.
  MlpMixer(const MixerSources& sources, const TensorName& name, const MlpConfig& config);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;

 private:
  std::optional<GateActivation> gate_;
  MlpActivation activation_;
  double gate_multiplier_, output_multiplier_;
  Transform input_;  // of a gated MLP, for both projections
  std::optional<Linear> gate_proj_;
  Linear up_proj_, down_proj_;
};

}  // namespace nemocube

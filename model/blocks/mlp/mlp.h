#pragma once
#include <optional>

#include "model/blocks/linear.h"
#include "ops/gated_activation/gated_activation.h"

namespace nemocube {

/// down_proj(relu(up_proj x)^2), or with a gate down_proj(phi(gate_proj x) * up_proj x). The mixer of an MLP
/// block, and the shared expert of an MoE block.
class MlpMixer final : public Mixer {
 public:
  MlpMixer(const MixerSources& sources, const TensorName& name, std::optional<GateActivation> gate = {});
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;

 private:
  std::optional<GateActivation> gate_;
  Transform input_;  // of a gated MLP, for both projections
  std::optional<Linear> gate_proj_;
  Linear up_proj_, down_proj_;
};

}  // namespace nemocube

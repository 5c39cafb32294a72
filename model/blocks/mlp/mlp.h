#pragma once
#include "model/blocks/linear.h"

namespace nemocube {

/// down_proj(relu(up_proj x)^2). The mixer of an MLP block, and the shared expert of an MoE block.
class MlpMixer final : public Mixer {
 public:
  MlpMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;

 private:
  Linear up_proj_, down_proj_;
};

}  // namespace nemocube

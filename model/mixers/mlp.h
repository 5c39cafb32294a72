#pragma once
#include "model/mixers/mixer.h"

namespace nemocube {

/// down_proj(relu(up_proj x)^2). The mixer of an MLP block, and the shared expert of an MoE block.
class MlpMixer final : public Mixer {
 public:
  MlpMixer(ParameterStore& store, const std::string& name);
  Var forward(Context& ctx, const Var& x, const Sequences& sequences, MixerState* state) override;

 private:
  Linear up_proj_, down_proj_;
};

}  // namespace nemocube

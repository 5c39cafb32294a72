#pragma once
#include "model/blocks/linear.h"

namespace nemocube {

/// The rows p [T, P] that the front makes for the layer of this block (model/front/per_layer_inputs.h), gated
/// by the residual stream:
///     per_layer_projection( gelu_tanh(per_layer_input_gate x) * p )
/// Source: transformers, gemma4 (hidden_size_per_layer_input).
class PerLayerInputMixer final : public Mixer {
 public:
  PerLayerInputMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;

 private:
  TensorName input_;
  Linear gate_, projection_;
};

/// The name of the rows that the front makes for a block of this kind.
TensorName per_layer_input_of(std::int64_t block);

}  // namespace nemocube

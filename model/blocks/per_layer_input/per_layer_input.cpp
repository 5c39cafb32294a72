#include "model/blocks/per_layer_input/per_layer_input.h"

#include "ops/gated_activation/gated_activation.h"

namespace nemocube {

TensorName per_layer_input_of(std::int64_t block) { return mixer_name(block, "per_layer_input"); }

PerLayerInputMixer::PerLayerInputMixer(const MixerSources& sources, const TensorName& name)
    : input_(per_layer_input_of(name.block)),
      gate_(sources, name / "per_layer_input_gate"),
      projection_(sources, name / "per_layer_projection") {}

Var PerLayerInputMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  Var gate = gate_(ctx, x, call.sequences);
  const Var inner =
      gated_activation(ctx, std::move(gate), call.side_rows().get(input_), GateActivation::gelu_tanh);
  return projection_(ctx, inner, call.sequences);
}

}  // namespace nemocube

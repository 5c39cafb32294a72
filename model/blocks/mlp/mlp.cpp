#include "model/blocks/mlp/mlp.h"

#include "ops/relu2/relu2.h"

namespace nemocube {

MlpMixer::MlpMixer(const MixerSources& sources, const TensorName& name, std::optional<GateActivation> gate)
    : gate_(gate),
      up_proj_(sources, name / "up_proj", gate ? PointRole::other : PointRole::way_in),
      down_proj_(sources, name / "down_proj", PointRole::way_out) {
  if (!gate) return;
  gate_proj_.emplace(sources, name / "gate_proj");
  sources.points.emplace(name / "gate_up.input",
                         TransformPoint{&input_, PointRole::way_in, name / "up_proj"});
}

Var MlpMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  if (!gate_) return down_proj_(ctx, relu2(ctx, up_proj_(ctx, x, sequences)), sequences);
  const Var in = apply(input_, ctx, x, sequences);
  Var gate = (*gate_proj_)(ctx, in, sequences), up = up_proj_(ctx, in, sequences);
  return down_proj_(ctx, gated_activation(ctx, std::move(gate), std::move(up), *gate_), sequences);
}

}  // namespace nemocube

#include "model/blocks/mlp/mlp.h"

#include "ops/gelu/gelu.h"
#include "ops/relu2/relu2.h"
#include "ops/scale_columns/scale_columns.h"

namespace nemocube {

MlpMixer::MlpMixer(const MixerSources& sources, const TensorName& name, const MlpConfig& config)
    : gate_(config.gate),
      activation_(config.activation),
      gate_multiplier_(config.gate_multiplier),
      output_multiplier_(config.output_multiplier),
      up_proj_(sources, name / "up_proj", gate_ ? PointRole::other : PointRole::way_in),
      down_proj_(sources, name / "down_proj", PointRole::way_out) {
  if (!gate_) return;
  gate_proj_.emplace(sources, name / "gate_proj");
  SharedWays* const way_in = sources.way_in();
  sources.points.emplace(
      name / "gate_up.input",
      TransformPoint{way_in ? &way_in->in : &input_, PointRole::way_in, name / "up_proj", nullptr, way_in});
}

Var MlpMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  if (!gate_) {
    Var inner = up_proj_(ctx, x, sequences);
    inner = activation_ == MlpActivation::relu2 ? relu2(ctx, std::move(inner)) : gelu(ctx, std::move(inner));
    return scale(ctx, down_proj_(ctx, inner, sequences), output_multiplier_);
  }
  const Var in = apply(input_, ctx, x, sequences);
  Var gate = scale(ctx, (*gate_proj_)(ctx, in, sequences), gate_multiplier_);
  Var up = up_proj_(ctx, in, sequences);
  const Var inner = gated_activation(ctx, std::move(gate), std::move(up), *gate_);
  return scale(ctx, down_proj_(ctx, inner, sequences), output_multiplier_);
}

}  // namespace nemocube

#include "model/blocks/mlp/mlp.h"

#include "ops/relu2/relu2.h"

namespace nemocube {

MlpMixer::MlpMixer(const MixerSources& sources, const TensorName& name)
    : up_proj_(sources, name / "up_proj", PointPlace::way_in),
      down_proj_(sources, name / "down_proj", PointPlace::way_out) {}

Var MlpMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  return down_proj_(ctx, relu2(ctx, up_proj_(ctx, x, call.sequences)), call.sequences);
}

}  // namespace nemocube

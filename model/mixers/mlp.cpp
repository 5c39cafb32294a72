#include "model/mixers/mlp.h"

#include "ops/relu2/relu2.h"

namespace nemocube {

MlpMixer::MlpMixer(const MixerSources& sources, const std::string& name)
    : up_proj_(sources, name + ".up_proj"), down_proj_(sources, name + ".down_proj") {}

Var MlpMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  return down_proj_(ctx, relu2(ctx, up_proj_(ctx, x, call.sequences)), call.sequences);
}

}  // namespace nemocube

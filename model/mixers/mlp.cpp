#include "model/mixers/mlp.h"

#include "ops/relu2/relu2.h"

namespace nemocube {

MlpMixer::MlpMixer(ParameterStore& store, const std::string& name)
    : up_proj_(store, name + ".up_proj"), down_proj_(store, name + ".down_proj") {}

Var MlpMixer::forward(Context& ctx, const Var& x, const Sequences&, MixerState*) {
  return down_proj_(ctx, relu2(ctx, up_proj_(ctx, x)));
}

}  // namespace nemocube

#include "model/mixers/mixer.h"

#include "ops/linear/linear.h"

namespace nemocube {

Linear::Linear(ParameterStore& store, const std::string& name)
    : weight_(&store.get(name + ".weight")), bias_(store.find(name + ".bias")) {}

Var Linear::operator()(Context& ctx, const Var& x) const {
  return linear(ctx, x, weight_->var(), bias_ ? bias_->var() : Var());
}

std::unique_ptr<MixerState> Mixer::make_state(std::int64_t) const { return nullptr; }

}  // namespace nemocube

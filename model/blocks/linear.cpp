#include "model/blocks/linear.h"

#include "ops/linear/linear.h"

namespace nemocube {

Linear::Linear(const MixerSources& sources, const std::string& name, PointPlace place)
    : weight_(&sources.parameters.get(name + ".weight")), bias_(sources.parameters.find(name + ".bias")) {
  const auto at = [&](PointPlace end) { return place == end ? end : PointPlace::other; };
  sources.points.emplace(name + ".input", TransformPoint{&input_, at(PointPlace::way_in), name});
  sources.points.emplace(name + ".output", TransformPoint{&output_, at(PointPlace::way_out), name});
}

Var Linear::operator()(Context& ctx, const Var& x, const Sequences& sequences) const {
  const Var in = apply(input_, ctx, x, sequences), bias = bias_ ? bias_->var() : Var();
  if (!output_) return linear(ctx, in, weight_->var(), bias);
  const Var y = output_(ctx, linear(ctx, in, weight_->var()), sequences);
  return bias.defined() ? add_bias(ctx, y, bias) : y;
}

}  // namespace nemocube

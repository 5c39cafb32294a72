#include "model/blocks/linear.h"

#include "ops/linear/linear.h"

namespace nemocube {

Linear::Linear(const MixerSources& sources, const TensorName& name, PointPlace place)
    : weight_(&sources.parameters.get(name / "weight")),
      bias_(sources.parameters.find(name / "bias")),
      adapter_(sources.setup, sources.parameters, name) {
  const auto at = [&](PointPlace end) { return place == end ? end : PointPlace::other; };
  sources.points.emplace(name / "input", TransformPoint{&input_, at(PointPlace::way_in), name,
                                                        adapter_ ? adapter_.rows() : nullptr});
  sources.points.emplace(name / "output", TransformPoint{&output_, at(PointPlace::way_out), name});
}

Var Linear::operator()(Context& ctx, const Var& x, const Sequences& sequences) const {
  const Var in = apply(input_, ctx, x, sequences), bias = bias_ ? bias_->var() : Var();
  Var y = linear(ctx, in, weight_->var(), output_ ? Var() : bias);
  if (adapter_) y = add_lora(ctx, y, in, adapter_.branch(sequences, in.value().device()));
  if (!output_) return y;
  y = output_(ctx, y, sequences);
  return bias.defined() ? add_bias(ctx, y, bias) : y;
}

}  // namespace nemocube

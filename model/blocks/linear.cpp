#include "model/blocks/linear.h"

#include "ops/linear/linear.h"

namespace nemocube {

Linear::Linear(const MixerSources& sources, const TensorName& name, PointRole role)
    : weight_(&sources.parameters.get(name / "weight")),
      bias_(sources.parameters.find(name / "bias")),
      adapter_(sources.setup, sources.parameters, name),
      way_out_(role == PointRole::way_out ? sources.way_out() : nullptr) {
  const auto at = [&](PointRole end) { return role == end ? end : PointRole::other; };
  SharedWays* const way_in = role == PointRole::way_in ? sources.way_in() : nullptr;
  sources.points.emplace(name / "input", TransformPoint{way_in ? &way_in->in : &input_, at(PointRole::way_in),
                                                        name, adapter_ ? adapter_.rows() : nullptr, way_in});
  sources.points.emplace(name / "output", TransformPoint{way_out_ ? &way_out_->out : &output_,
                                                         at(PointRole::way_out), name, nullptr, way_out_});
}

Var Linear::bias() const {
  if (!bias_) return {};
  const Var bias = bias_->var();
  if (!way_out_ || !way_out_->biases_elsewhere) return bias;
  const Tensor& value = bias.value();
  return {Tensor::zeros(value.shape(), value.dtype(), value.device()), bias.node()};
}

Var Linear::operator()(Context& ctx, const Var& x, const Sequences& sequences) const {
  const Var in = apply(input_, ctx, x, sequences), b = bias();
  Var y = linear(ctx, in, weight_->var(), output_ ? Var() : b);
  if (adapter_) y = add_lora(ctx, y, in, adapter_.branch(sequences, in.value().device()));
  if (!output_) return y;
  y = output_(ctx, y, sequences);
  return b.defined() ? add_bias(ctx, y, b) : y;
}

}  // namespace nemocube

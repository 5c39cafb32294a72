#include "model/blocks/gated_delta_net/gated_delta_net.h"

#include <array>

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_rmsnorm/gated_rmsnorm.h"
#include "ops/view/view.h"

namespace nemocube {

/// For each sequence the last conv_kernel - 1 inputs of the convolution, and the state of the delta rule.
struct GatedDeltaNetMixer::State final : MixerState {
  Tensor conv;  // [count, K - 1, 2 key_width + value_width]
  Tensor rule;  // [count, value_heads, key_dim, value_dim]
};

GatedDeltaNetMixer::GatedDeltaNetMixer(const MixerSources& sources, const TensorName& name)
    : conv_kernel_(sources.config.gated_delta_net.conv_kernel),
      eps_(sources.config.layer_norm_epsilon),
      in_proj_qkv_(sources, name / "in_proj_qkv"),
      in_proj_z_(sources, name / "in_proj_z"),
      in_proj_b_(sources, name / "in_proj_b"),
      in_proj_a_(sources, name / "in_proj_a"),
      out_proj_(sources, name / "out_proj", PointRole::way_out),
      conv_weight_(&sources.parameters.get(name / "conv1d.weight")),
      a_log_(&sources.parameters.get(name / "A_log")),
      dt_bias_(&sources.parameters.get(name / "dt_bias")),
      norm_(&sources.parameters.get(name / "norm.weight")) {
  SharedWays* const way_in = sources.way_in();
  sources.points.emplace(name / "in.input", TransformPoint{way_in ? &way_in->in : &input_, PointRole::way_in,
                                                           name / "in_proj_qkv", nullptr, way_in});
  const GatedDeltaNetConfig& config = sources.config.gated_delta_net;
  rule_.key_dim = config.key_head_dim;
  rule_.value_dim = config.value_head_dim;
  rule_.value_heads = a_log_->value.dim(0);
  rule_.key_heads = (in_proj_qkv_.out_features() - rule_.value_heads * rule_.value_dim) / (2 * rule_.key_dim);
}

std::unique_ptr<MixerState> GatedDeltaNetMixer::make_state(std::int64_t count) const {
  const DType dtype = accumulate_dtype(conv_weight_->value.dtype());
  const Device device = conv_weight_->value.device();
  auto state = std::make_unique<State>();
  state->conv = Tensor::zeros({count, conv_kernel_ - 1, conv_weight_->value.dim(0)}, dtype, device);
  state->rule = Tensor::zeros({count, rule_.value_heads, rule_.key_dim, rule_.value_dim}, dtype, device);
  return state;
}

Var DeltaNetCore::operator()(Context& ctx, const Var& qkv, const Var& a, const Var& b,
                             const Sequences& sequences, Tensor* conv_state, Tensor* rule_state) const {
  const Var conv = causal_conv1d_silu(ctx, qkv, conv_weight, {}, sequences, conv_state, conv_state);
  const auto parts = split_last(ctx, conv, std::array{key_width(), key_width(), value_width()});
  const DeltaRuleInputs inputs{parts[0], parts[1], parts[2], a, b, a_log, dt_bias};
  return gated_delta_rule(ctx, inputs, rule, sequences, rule_state, rule_state);
}

DeltaNetCore GatedDeltaNetMixer::core() const {
  return {rule_, conv_weight_->var(), a_log_->var(), dt_bias_->var()};
}

Var GatedDeltaNetMixer::forward(Context& ctx, const Var& u, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const Var in = apply(input_, ctx, u, sequences);
  const Var qkv = in_proj_qkv_(ctx, in, sequences), z = in_proj_z_(ctx, in, sequences),
            b = in_proj_b_(ctx, in, sequences), a = in_proj_a_(ctx, in, sequences);
  const DeltaNetCore inside = core();
  Var y;
  if (auto* kept = static_cast<State*>(call.state))
    y = inside(ctx, qkv, a, b, sequences, &kept->conv, &kept->rule);
  else
    y = run_core_ ? run_core_(ctx, inside, qkv, a, b, sequences) : inside(ctx, qkv, a, b, sequences);
  return out_proj_(ctx,
                   gated_rmsnorm(ctx, y, z, norm_->var(), rule_.value_heads, eps_, {}, GateOrder::norm_first),
                   sequences);
}

}  // namespace nemocube

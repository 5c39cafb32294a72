#include "model/blocks/mamba/mamba.h"

#include <array>

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_activation/gated_activation.h"
#include "ops/scale_columns/scale_columns.h"
#include "ops/view/view.h"

namespace nemocube {

/// For each sequence the last conv_kernel - 1 inputs of the convolution, and the state of the scan.
struct MambaMixer::State final : MixerState {
  Tensor conv;  // [count, K - 1, conv_dim]
  Tensor ssm;   // [count, heads, head_dim, state]
};

MambaMixer::MambaMixer(const MixerSources& sources, const TensorName& name)
    : all_heads_(sources.config.mamba.num_heads),
      conv_kernel_(sources.config.mamba.conv_kernel),
      eps_(sources.config.layer_norm_epsilon),
      gate_and_norm_(sources.config.mamba.norm),
      multipliers_(sources.config.mamba.multipliers),
      in_proj_(sources, name / "in_proj", PointRole::way_in),
      out_proj_(sources, name / "out_proj", PointRole::way_out),
      conv_weight_(&sources.parameters.get(name / "conv1d.weight")),
      conv_bias_(sources.parameters.find(name / "conv1d.bias")),
      a_log_(&sources.parameters.get(name / "A_log")),
      d_(&sources.parameters.get(name / "D")),
      dt_bias_(&sources.parameters.get(name / "dt_bias")),
      norm_(sources.parameters.find(name / "norm.weight")) {
  const BlockConfig& config = sources.config;
  scan_.heads = a_log_->value.dim(0);
  scan_.head_dim = config.mamba.head_dim;
  scan_.groups =
      (conv_weight_->value.dim(0) - scan_.heads * scan_.head_dim) / (2 * config.mamba.ssm_state_size);
  scan_.state_size = config.mamba.ssm_state_size;
  scan_.chunk_size = config.mamba.chunk_size;
  scan_.dt_min = config.mamba.time_step_limit_low;
  scan_.dt_max = config.mamba.time_step_limit_high;
}

std::unique_ptr<MixerState> MambaMixer::make_state(std::int64_t count) const {
  const DType dtype = accumulate_dtype(conv_weight_->value.dtype());
  const Device device = conv_weight_->value.device();
  auto state = std::make_unique<State>();
  state->conv = Tensor::zeros({count, conv_kernel_ - 1, conv_weight_->value.dim(0)}, dtype, device);
  state->ssm = Tensor::zeros({count, scan_.heads, scan_.head_dim, scan_.state_size}, dtype, device);
  return state;
}

Var MambaCore::operator()(Context& ctx, const Var& xbc, const Var& dt, const Sequences& sequences,
                          Tensor* conv_state, Tensor* scan_state) const {
  const Var conv = causal_conv1d_silu(ctx, xbc, conv_weight, conv_bias, sequences, conv_state, conv_state);
  const std::array widths{inner(), group_width(), group_width()};
  const auto parts = split_last(ctx, conv, widths);
  const SsdInputs inputs{parts[0], dt, parts[1], parts[2], a_log, d, dt_bias};
  return ssd_scan(ctx, inputs, scan, sequences, scan_state, scan_state);
}

MambaCore MambaMixer::core() const {
  return {scan_,         conv_weight_->var(), conv_bias_ ? conv_bias_->var() : Var(),
          a_log_->var(), d_->var(),           dt_bias_->var()};
}

Var MambaMixer::projected(Context& ctx, const Var& u, const Sequences& sequences) const {
  const MambaMultipliers& by = multipliers_;
  // Without a bias the factor of the input is one of all parts.
  const double before = in_proj_.has_bias() ? by.input : 1, all = in_proj_.has_bias() ? 1 : by.input;
  const std::int64_t inner = scan_.heads * scan_.head_dim, states = scan_.groups * scan_.state_size;
  const std::array<ColumnFactor, 5> parts{{{inner, all * by.z},
                                           {inner, all * by.x},
                                           {states, all * by.b},
                                           {states, all * by.c},
                                           {scan_.heads, all * by.dt}}};
  return scale_columns(ctx, in_proj_(ctx, scale(ctx, u, before), sequences), parts);
}

Var MambaMixer::gated(Context& ctx, const Var& y, const Var& z) const {
  if (gate_and_norm_ == MambaNorm::none) return gated_activation(ctx, z, y, GateActivation::silu);
  const GateOrder order =
      gate_and_norm_ == MambaNorm::after_gate ? GateOrder::gate_first : GateOrder::norm_first;
  return gated_rmsnorm(ctx, y, z, norm_->var(), scan_.groups, eps_, norm_part_, order);
}

Var MambaMixer::forward(Context& ctx, const Var& u, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const MambaCore inside = core();
  const std::array widths{inside.inner(), inside.inner() + 2 * inside.group_width(), scan_.heads};
  const auto parts = split_last(ctx, projected(ctx, u, sequences), widths);
  const Var &z = parts[0], &xbc = parts[1], &dt = parts[2];
  Var y;
  if (auto* kept = static_cast<State*>(call.state))
    y = inside(ctx, xbc, dt, sequences, &kept->conv, &kept->ssm);
  else
    y = run_core_ ? run_core_(ctx, inside, xbc, dt, sequences) : inside(ctx, xbc, dt, sequences);
  return scale(ctx, out_proj_(ctx, gated(ctx, y, z), sequences), multipliers_.output);
}

}  // namespace nemocube

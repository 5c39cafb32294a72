#include "model/blocks/mamba/mamba.h"

#include <array>

#include "ops/causal_conv1d/causal_conv1d.h"
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
      in_proj_(sources, name / "in_proj", PointRole::way_in),
      out_proj_(sources, name / "out_proj", PointRole::way_out),
      conv_weight_(&sources.parameters.get(name / "conv1d.weight")),
      conv_bias_(sources.parameters.find(name / "conv1d.bias")),
      a_log_(&sources.parameters.get(name / "A_log")),
      d_(&sources.parameters.get(name / "D")),
      dt_bias_(&sources.parameters.get(name / "dt_bias")),
      norm_(&sources.parameters.get(name / "norm.weight")) {
  const BlockConfig& config = sources.config;
  scan_.heads = a_log_->value.dim(0);
  scan_.head_dim = config.mamba.head_dim;
  scan_.groups = (conv_weight_->value.dim(0) - norm_->value.dim(0)) / (2 * config.mamba.ssm_state_size);
  scan_.state_size = config.mamba.ssm_state_size;
  scan_.chunk_size = config.mamba.chunk_size;
  scan_.dt_min = config.mamba.time_step_limit_low;
  scan_.dt_max = config.mamba.time_step_limit_high;
}

std::unique_ptr<MixerState> MambaMixer::make_state(std::int64_t count) const {
  const DType dtype = accumulate_dtype(norm_->value.dtype());
  const Device device = norm_->value.device();
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

Var MambaMixer::forward(Context& ctx, const Var& u, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const MambaCore inside = core();
  const std::array widths{inside.inner(), inside.inner() + 2 * inside.group_width(), scan_.heads};
  const auto parts = split_last(ctx, in_proj_(ctx, u, sequences), widths);
  const Var &z = parts[0], &xbc = parts[1], &dt = parts[2];
  Var y;
  if (auto* kept = static_cast<State*>(call.state))
    y = inside(ctx, xbc, dt, sequences, &kept->conv, &kept->ssm);
  else
    y = run_core_ ? run_core_(ctx, inside, xbc, dt, sequences) : inside(ctx, xbc, dt, sequences);
  return out_proj_(ctx, gated_rmsnorm(ctx, y, z, norm_->var(), scan_.groups, eps_, norm_part_), sequences);
}

}  // namespace nemocube

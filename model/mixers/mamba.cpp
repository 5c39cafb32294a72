#include "model/mixers/mamba.h"

#include <array>

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_rmsnorm/gated_rmsnorm.h"
#include "ops/view/view.h"

namespace nemocube {

/// For each sequence the last conv_kernel - 1 inputs of the convolution, and the state of the scan.
struct MambaMixer::State final : MixerState {
  Tensor conv;  // [count, K - 1, conv_dim]
  Tensor ssm;   // [count, heads, head_dim, state]
};

MambaMixer::MambaMixer(const MixerSources& sources, const std::string& name)
    : conv_kernel_(sources.config.conv_kernel),
      eps_(sources.config.layer_norm_epsilon),
      in_proj_(sources, name + ".in_proj"),
      out_proj_(sources, name + ".out_proj"),
      conv_weight_(&sources.parameters.get(name + ".conv1d.weight")),
      conv_bias_(sources.parameters.find(name + ".conv1d.bias")),
      a_log_(&sources.parameters.get(name + ".A_log")),
      d_(&sources.parameters.get(name + ".D")),
      dt_bias_(&sources.parameters.get(name + ".dt_bias")),
      norm_(&sources.parameters.get(name + ".norm.weight")) {
  const NemotronHConfig& config = sources.config;
  inner_ = norm_->value.dim(0);
  group_width_ = (conv_weight_->value.dim(0) - inner_) / 2;  // B and C
  scan_.heads = a_log_->value.dim(0);
  scan_.head_dim = config.mamba_head_dim;
  scan_.groups = group_width_ / config.ssm_state_size;
  scan_.state_size = config.ssm_state_size;
  scan_.chunk_size = config.chunk_size;
  scan_.dt_min = config.time_step_limit_low;
  scan_.dt_max = config.time_step_limit_high;
}

std::unique_ptr<MixerState> MambaMixer::make_state(std::int64_t count) const {
  const DType dtype = accumulate_dtype(norm_->value.dtype());
  const Device device = norm_->value.device();
  auto state = std::make_unique<State>();
  state->conv = Tensor::zeros({count, conv_kernel_ - 1, inner_ + 2 * group_width_}, dtype, device);
  state->ssm = Tensor::zeros({count, scan_.heads, scan_.head_dim, scan_.state_size}, dtype, device);
  return state;
}

Var MambaMixer::forward(Context& ctx, const Var& u, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  auto* kept = static_cast<State*>(call.state);
  const std::array widths{inner_, inner_ + 2 * group_width_, scan_.heads};
  const auto parts = split_last(ctx, in_proj_(ctx, u), widths);
  const Var &z = parts[0], &conv_in = parts[1], &dt = parts[2];

  const Var conv =
      causal_conv1d_silu(ctx, conv_in, conv_weight_->var(), conv_bias_ ? conv_bias_->var() : Var(), sequences,
                         kept ? &kept->conv : nullptr, kept ? &kept->conv : nullptr);
  const std::array conv_widths{inner_, group_width_, group_width_};
  const auto xbc = split_last(ctx, conv, conv_widths);

  const SsdInputs inputs{xbc[0], dt, xbc[1], xbc[2], a_log_->var(), d_->var(), dt_bias_->var()};
  const Var y =
      ssd_scan(ctx, inputs, scan_, sequences, kept ? &kept->ssm : nullptr, kept ? &kept->ssm : nullptr);
  return out_proj_(ctx, gated_rmsnorm(ctx, y, z, norm_->var(), scan_.groups, eps_));
}

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <limits>

namespace nemocube {

class ConfigKeys;

/// What is between the scan and out_proj, with the gate z.
enum class MambaNorm : std::uint8_t {
  after_gate,   ///< w RMS(y silu(z))
  before_gate,  ///< w RMS(y) silu(z)
  none,         ///< y silu(z), without a weight
};

/// How fresh values of the convolution and of dt_bias are drawn. Fresh A_log and D are the same in both.
enum class MambaStart : std::uint8_t {
  time_steps,  ///< taps and bias uniform in +-conv_kernel^-0.5, dt_bias from time steps (time_step_min, ..)
  plain,       ///< taps as the weights of projections, bias 0, dt_bias 1
};

/// Factors of what passes through a mixer. Those of z, x, B, C and dt apply to the parts of
/// in_proj(input u) + bias.
struct MambaMultipliers {
  double input = 1, z = 1, x = 1, b = 1, c = 1, dt = 1, output = 1;
  bool operator==(const MambaMultipliers&) const = default;
};

/// The sizes of a Mamba-2 mixer.
struct MambaConfig {
  std::int64_t num_heads = 128;
  std::int64_t head_dim = 64;
  std::int64_t n_groups = 8;
  std::int64_t ssm_state_size = 128;
  std::int64_t conv_kernel = 4;
  std::int64_t chunk_size = 128;
  bool use_conv_bias = true;
  bool in_proj_bias = false, out_proj_bias = false;
  MambaNorm norm = MambaNorm::after_gate;
  MambaMultipliers multipliers;
  MambaStart start = MambaStart::time_steps;
  double time_step_min = 1e-3, time_step_max = 0.1, time_step_floor = 1e-4;
  double time_step_limit_low = 0.0;
  double time_step_limit_high = std::numeric_limits<double>::infinity();

  std::int64_t inner() const { return num_heads * head_dim; }
  std::int64_t state_width() const { return n_groups * ssm_state_size; }  ///< width of B, and of C
  std::int64_t conv_dim() const { return inner() + 2 * state_width(); }
  std::int64_t in_proj_width() const { return inner() + conv_dim() + num_heads; }

  /// One key for the biases of both projections. Norm, multipliers and start have keys that families spell in
  /// their own ways.
  void visit(ConfigKeys& keys);
  bool operator==(const MambaConfig&) const = default;
};

}  // namespace nemocube

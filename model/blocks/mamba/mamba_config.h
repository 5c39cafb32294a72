#pragma once
#include <cstdint>
#include <limits>

namespace nemocube {

class ConfigKeys;

/// The sizes of a Mamba-2 mixer.
struct MambaConfig {
  std::int64_t num_heads = 128;
  std::int64_t head_dim = 64;
  std::int64_t n_groups = 8;
  std::int64_t ssm_state_size = 128;
  std::int64_t conv_kernel = 4;
  std::int64_t chunk_size = 128;
  bool use_conv_bias = true;
  bool use_bias = false;  ///< on the projections
  double time_step_min = 1e-3, time_step_max = 0.1, time_step_floor = 1e-4;
  double time_step_limit_low = 0.0;
  double time_step_limit_high = std::numeric_limits<double>::infinity();

  std::int64_t inner() const { return num_heads * head_dim; }
  std::int64_t state_width() const { return n_groups * ssm_state_size; }  ///< width of B, and of C
  std::int64_t conv_dim() const { return inner() + 2 * state_width(); }
  std::int64_t in_proj_width() const { return inner() + conv_dim() + num_heads; }

  void visit(ConfigKeys& keys);
  bool operator==(const MambaConfig&) const = default;
};

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <limits>

namespace nemocube {

/// What a block is made from: the sizes of its mixer. Field names and defaults are those of Hugging Face's config class for
/// `nemotron_h`. NemotronHConfig
/// derives from BlockConfig: its base holds the sizes that all blocks without a config of their own have.
struct BlockConfig {
  std::int64_t hidden_size = 4096;   ///< of the residual stream: the same in all blocks of a model
  double layer_norm_epsilon = 1e-5;  ///< the same in all blocks of a model

  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 8;
  std::int64_t head_dim = 128;

  std::int64_t intermediate_size = 21504;
  bool mlp_bias = false;  ///< on dense MLPs, shared experts and latent projections, not on routed experts

  std::int64_t mamba_num_heads = 128;
  std::int64_t mamba_head_dim = 64;
  std::int64_t n_groups = 8;
  std::int64_t ssm_state_size = 128;
  std::int64_t conv_kernel = 4;
  std::int64_t chunk_size = 128;
  bool use_conv_bias = true;
  bool use_bias = false;  ///< on the Mamba projections
  double time_step_min = 1e-3, time_step_max = 0.1, time_step_floor = 1e-4;
  double time_step_limit_low = 0.0;
  double time_step_limit_high = std::numeric_limits<double>::infinity();

  std::int64_t n_routed_experts = 8;
  std::int64_t num_experts_per_tok = 2;
  std::int64_t moe_intermediate_size = 7688;
  std::int64_t moe_shared_expert_intermediate_size = 7688;  ///< each MoE block has one shared expert
  std::int64_t moe_latent_size = 0;                         ///< 0: experts work on the hidden width
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;

  std::int64_t mamba_inner() const { return mamba_num_heads * mamba_head_dim; }
  std::int64_t state_width() const { return n_groups * ssm_state_size; }  ///< width of B, and of C
  std::int64_t conv_dim() const { return mamba_inner() + 2 * state_width(); }
  std::int64_t in_proj_width() const { return mamba_inner() + conv_dim() + mamba_num_heads; }
  std::int64_t q_width() const { return num_attention_heads * head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads * head_dim; }
  std::int64_t expert_width() const { return moe_latent_size > 0 ? moe_latent_size : hidden_size; }

  bool operator==(const BlockConfig&) const = default;
};

}  // namespace nemocube

#pragma once
#include <cstdint>

#include "model/config.h"

/// Configs of the model's tests, and the block patterns of published models.
namespace nemocube::testing {

/// The name that is spelled so.
inline TensorName named(std::string_view text) { return ModelNames().find(text).value(); }

struct Sizes {
  const char* pattern;
  std::int64_t hidden, heads, kv_heads, mlp, mamba_heads, mamba_head_dim, state, chunk = 128;
};
inline ModelConfig dense(const Sizes& s) {
  ModelConfig c;
  c.blocks = parse_pattern(s.pattern).blocks;
  c.hidden_size = s.hidden;
  c.attention.num_attention_heads = s.heads;
  c.attention.num_key_value_heads = s.kv_heads;
  c.mlp.intermediate_size = s.mlp;
  c.mamba.num_heads = s.mamba_heads;
  c.mamba.head_dim = s.mamba_head_dim;
  c.mamba.ssm_state_size = s.state;
  c.mamba.chunk_size = s.chunk;
  return c;
}

struct Experts {
  std::int64_t experts, top_k, inner, shared, latent = 0, mtp = 0;
};
inline ModelConfig with_experts(const Sizes& s, const Experts& e) {
  ModelConfig c = dense(s);
  c.moe.n_routed_experts = e.experts;
  c.moe.num_experts_per_tok = e.top_k;
  c.moe.intermediate_size = e.inner;
  c.moe.shared_expert_intermediate_size = e.shared;
  c.moe.latent_size = e.latent;
  c.num_nextn_predict_layers = e.mtp;
  return c;
}

inline constexpr const char* h8 = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
inline constexpr const char* h47 =
    "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-";
inline constexpr const char* h56 =
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-"
    "M-M*-M-M-M-M-M-";
inline constexpr const char* nano_9b = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
inline constexpr const char* nano_12b = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
inline constexpr const char* nano_4b = "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-";
inline constexpr const char* nano_30b = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
inline constexpr const char* super =
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
inline constexpr const char* ultra =
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
    "EMEMEMEME";

/// The config of a block, which from now on is its own.
inline BlockConfig& own_config(ModelConfig& config, std::int64_t block) {
  return config.own_configs.emplace(block, config.common()).first->second;
}
/// A model of the same sizes, which each block has by a config of its own; the common sizes are the defaults.
inline ModelConfig with_own_of_all(ModelConfig config) {
  for (std::int64_t i = 0; i < config.num_layers(); ++i) own_config(config, i);
  BlockConfig sizes;
  sizes.hidden_size = config.hidden_size;
  static_cast<BlockConfig&>(config) = sizes;
  return config;
}

}  // namespace nemocube::testing

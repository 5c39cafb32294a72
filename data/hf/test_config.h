#pragma once
#include "model/config.h"

namespace nemocube::testing {

/// A model of which every size is small, and most are unlike.
inline ModelConfig small_test_config(const char* pattern) {
  ModelConfig c;
  c.blocks = parse_pattern(pattern).blocks;
  c.vocab_size = 24;
  c.hidden_size = 8;
  c.attention.num_attention_heads = 2;
  c.attention.num_key_value_heads = 1;
  c.attention.head_dim = 4;
  c.mlp.intermediate_size = 12;
  c.mamba.num_heads = 2;
  c.mamba.head_dim = 4;
  c.mamba.n_groups = 1;
  c.mamba.ssm_state_size = 4;
  c.moe.n_routed_experts = 3;
  c.moe.num_experts_per_tok = 2;
  c.moe.intermediate_size = 6;
  c.moe.shared_expert_intermediate_size = 10;
  return c;
}

}  // namespace nemocube::testing

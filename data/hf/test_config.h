#pragma once
#include "model/config.h"

namespace nemocube::testing {

/// A model of which every size is small, and most are unlike.
inline NemotronHConfig small_test_config(const char* pattern) {
  NemotronHConfig c;
  c.blocks = parse_pattern(pattern).blocks;
  c.vocab_size = 24;
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 4;
  c.intermediate_size = 12;
  c.mamba_num_heads = 2;
  c.mamba_head_dim = 4;
  c.n_groups = 1;
  c.ssm_state_size = 4;
  c.n_routed_experts = 3;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 6;
  c.moe_shared_expert_intermediate_size = 10;
  return c;
}

}  // namespace nemocube::testing

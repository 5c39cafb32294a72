#pragma once
#include <cstdint>

#include "model/blocks/attention/rope_config.h"

namespace nemocube {

class ConfigKeys;

/// The sizes of an attention mixer.
struct AttentionConfig {
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 8;
  std::int64_t head_dim = 128;
  bool qkv_bias = false, output_bias = false;  ///< of q_proj, k_proj and v_proj; of o_proj
  RopeConfig rope;

  std::int64_t q_width() const { return num_attention_heads * head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads * head_dim; }

  /// Biases and the rotary embedding have keys that families spell in their own ways.
  void visit(ConfigKeys& keys);
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace nemocube

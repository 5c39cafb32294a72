#pragma once
#include <cstdint>

namespace nemocube {

class ConfigKeys;

/// The sizes of an attention mixer.
struct AttentionConfig {
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 8;
  std::int64_t head_dim = 128;

  std::int64_t q_width() const { return num_attention_heads * head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads * head_dim; }

  void visit(ConfigKeys& keys);
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace nemocube

#pragma once
#include <cstdint>

namespace nemocube {

class ConfigKeys;

/// The sizes of a Gated DeltaNet mixer. Value head h reads key head h / (num_value_heads / num_key_heads).
struct GatedDeltaNetConfig {
  std::int64_t num_key_heads = 16;
  std::int64_t num_value_heads = 32;
  std::int64_t key_head_dim = 128;
  std::int64_t value_head_dim = 128;
  std::int64_t conv_kernel = 4;

  std::int64_t key_width() const { return num_key_heads * key_head_dim; }  ///< of queries, and of keys
  std::int64_t value_width() const { return num_value_heads * value_head_dim; }
  std::int64_t conv_dim() const { return 2 * key_width() + value_width(); }

  void visit(ConfigKeys& keys);
  bool operator==(const GatedDeltaNetConfig&) const = default;
};

}  // namespace nemocube

#pragma once
#include <cstdint>
#include <optional>

#include "model/blocks/attention/position_scale.h"
#include "model/blocks/attention/rope_config.h"
#include "model/blocks/norm_kind.h"

namespace nemocube {

class ConfigKeys;

/// The sizes of an attention mixer.
struct AttentionConfig {
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 8;
  std::int64_t head_dim = 128;
  bool qkv_bias = false, output_bias = false;  ///< of q_proj, k_proj and v_proj; of o_proj
  /// One layer qkv_proj has the rows of q_proj, k_proj and v_proj, one after another. There are then as many
  /// key-value heads as query heads, and neither biases nor norms of heads.
  bool packed = false;
  double score_scale = 0;  ///< of the scores; 0: head_dim^-0.5
  /// Factors: of the input of the projections; of the keys, which is one more of the scores; of the output.
  double input_multiplier = 1, key_multiplier = 1, output_multiplier = 1;
  RopeConfig rope;
  bool alibi = false;  ///< scores fall with the distance, with a slope for each head (alibi_slopes.h)
  PositionScale position_scale;
  /// A norm of each head's queries and keys before the rotary embedding, with the weights q_norm and k_norm
  /// [head_dim], which all heads share.
  std::optional<NormKind> head_norm = {};
  /// Each head's result is multiplied by sigmoid(g). Of each head q_proj has the rows of the queries, then
  /// those of g. There are then norms of heads, and not one layer qkv_proj.
  bool output_gate = false;
  /// The values are the products of k_proj: there is no v_proj.
  bool keys_are_values = false;
  /// A norm of each head's values, without a weight, by its root mean square.
  bool value_norm = false;
  /// The block of the model whose keys and values these queries see, behind norm and rotary embedding; there
  /// are then no k_proj, v_proj and k_norm. None: those of the block itself.
  std::optional<std::int64_t> kv_block = {};
  std::int64_t window = 0;  ///< keys that a query sees, its own included; 0: all before it

  std::int64_t q_width() const { return num_attention_heads * head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads * head_dim; }

  /// What is not a size has keys that families spell in their own ways.
  void visit(ConfigKeys& keys);
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace nemocube

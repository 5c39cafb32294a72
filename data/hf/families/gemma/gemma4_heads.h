#pragma once
#include <cstdint>
#include <vector>

#include "data/json/json.h"
#include "model/config.h"

/// The heads of Gemma 4's attention in config.json: layers that see all keys have others than those that
/// slide.
namespace nemocube::gemma4 {

inline constexpr const char *full = "full_attention", *sliding = "sliding_attention";

using LayerTypes = std::vector<bool>;  ///< of each layer, whether it slides

inline std::int64_t layers_of(const ModelConfig& config) { return config.names.layers(config.num_layers()); }

/// The heads of layers of one type.
struct Heads {
  std::int64_t head_dim, num_key_value_heads;
  bool operator==(const Heads&) const = default;
};
struct HeadsOfTypes {
  Heads full, sliding;
};

void set_heads(AttentionConfig& attention, const Heads& heads);

/// Reads `per_layer_config`, or without this key `global_head_dim` and `num_global_key_value_heads`. pre: the
/// common attention has `head_dim` and `num_key_value_heads` of the whole config. Throws Error naming the key
/// where layers of a type differ, where they differ in another key, and where both spellings are there and
/// differ.
HeadsOfTypes read_heads(const ModelConfig& config, const JsonView& object, const LayerTypes& types,
                        bool keys_are_values);

/// `per_layer_config` as transformers writes it: only layers that differ, their numbers with as many digits.
Json per_layer_heads(const ModelConfig& config);

}  // namespace nemocube::gemma4

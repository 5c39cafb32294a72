#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Gemma 4 (`gemma4_text`, Gemma4ForCausalLM: E2B, E4B, 26B-A4B, 31B): the layers of Gemma 3 with norms whose
/// weights are around 1, a norm of values, other heads in layers that see all keys, and a number that
/// multiplies the residual stream behind each layer. Models may have, besides, layers that read the keys and
/// values of others, values that are the products of k_proj, per-layer inputs, and a mixture of experts
/// beside each MLP (docs/gemma4.md).
///
/// config.json: the keys of Hugging Face's Gemma4TextConfig, whose defaults count where a key is absent.
/// Layer l slides by `layer_types`, else where l + 1 is no multiple of 6. The last layer sees all keys. Heads
/// of layers that see all keys have
///   head_dim              of `per_layer_config`, else `global_head_dim` (512)
///   num_key_value_heads   of `per_layer_config`, else `num_global_key_value_heads` where `attention_k_eq_v`,
///                         else those of the other layers
/// `per_layer_config` {"05": {...}} may say these two of each layer, the same of all layers of a type; it is
/// what is written. `rope_parameters` has an object for each type. Refused: `use_bidirectional_attention`
/// "all"; per-layer inputs of a vocabulary other than the model's; a model whose layers all read the keys of
/// others. "vision" is accepted: between tokens of text it changes nothing. Of layers that read keys of
/// others files may hold k_proj, v_proj and k_norm, which are not read, in transformers either.
///
/// In Gemma4ForConditionalGeneration (`gemma4`) the whole's `tie_word_embeddings` counts, which is true where
/// absent. Source: transformers 5.24, models/gemma4 and integrations/heterogeneity
extern const Family gemma4_family;

/// Gemma 4 without a tower of its own for images (`gemma4_unified_text`, the language model of
/// Gemma4UnifiedForConditionalGeneration: 12B). The same, with other defaults, and with neither per-layer
/// inputs nor experts, whose keys have no effect. Source: transformers 5.24, models/gemma4_unified
extern const Family gemma4_unified_family;

}  // namespace nemocube

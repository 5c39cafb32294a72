#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Gemma 3 (`gemma3_text`, Gemma3ForCausalLM: 270M to 27B): layers with a norm before and behind attention
/// and MLP, norms of heads, all with weights 1 + w, a GeGLU, embeddings by sqrt(hidden_size), and layers that
/// see a window of keys with a rotary embedding of their own.
///
/// config.json: the keys of Hugging Face's Gemma3TextConfig, whose defaults count where a key is absent.
/// Layer l slides by `layer_types`, else where l + 1 is no multiple of `sliding_window_pattern` (6). Rotary
/// embeddings are
///   of layers that see all keys    `rope_parameters.full_attention`, else `rope_theta` (1e6) and
///                                  `rope_scaling`
///   of layers that slide           `rope_parameters.sliding_attention`, else `rope_local_base_freq` (1e4)
/// `attn_logit_softcapping` has no effect in Hugging Face's class, nor here: a warning. Refused:
/// `use_bidirectional_attention`. In Gemma3ForConditionalGeneration (`gemma3`) the whole's
/// `tie_word_embeddings` counts, which is true where absent, and `final_logit_softcapping` has no effect.
extern const Family gemma3_family;

}  // namespace nemocube

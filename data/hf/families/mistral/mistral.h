#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Mistral (`mistral`, MistralForCausalLM: 7B, Nemo, Small): layers as Llama's
/// (data/hf/families/decoder_layers.h) without biases.
///
/// config.json: the keys of Hugging Face's MistralConfig, whose defaults count where a key is absent.
/// `sliding_window` is of all layers: 4096 where the key is absent, none where it is null. The rotary
/// embedding: data/hf/rope_keys.h. In Mistral3ForConditionalGeneration (`mistral3`) the language model is one
/// of these, or of ministral3.h; there the whole's `tie_word_embeddings` counts, which is true where absent.
extern const Family mistral_family;

}  // namespace nemocube

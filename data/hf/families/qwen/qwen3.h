#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Qwen 3 (`qwen3`, Qwen3ForCausalLM): layers as Llama's (data/hf/families/decoder_layers.h), whose queries
/// and keys have a norm for each head before the rotary embedding.
///
/// config.json: the keys of Hugging Face's Qwen3Config, whose defaults count where a key is absent.
/// `attention_bias` is of all four projections of attention. Sliding windows are read as Qwen 2's
/// (data/hf/families/qwen/windows.h), the rotary embedding as data/hf/rope_keys.h says.
extern const Family qwen3_family;

}  // namespace nemocube

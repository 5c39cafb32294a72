#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Qwen 2 and 2.5 (`qwen2`, Qwen2ForCausalLM): layers as Llama's (data/hf/families/decoder_layers.h), with
/// biases of q_proj, k_proj and v_proj always, and of no other layer.
///
/// config.json: the keys of Hugging Face's Qwen2Config, whose defaults count where a key is absent.
/// Sliding windows: data/hf/families/qwen/windows.h. A layer that is to slide without a window is refused, as
/// Hugging Face does. The rotary embedding: data/hf/rope_keys.h.
extern const Family qwen2_family;

}  // namespace nemocube

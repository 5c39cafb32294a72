#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Qwen 3.5 (`qwen3_5_text`, Qwen3_5ForCausalLM), alone and in Qwen3_5ForConditionalGeneration: most layers
/// have Gated DeltaNet in the place of attention (docs/gated_delta_rule.md). Attention has norms of heads,
/// a rotary embedding of a part of each head, and a gate of each head's result. Norms of the residual
/// stream and of heads multiply by 1 + w.
///
/// config.json: the keys of Hugging Face's Qwen3_5TextConfig, whose defaults count where a key is absent.
/// `layer_types` says which layers have attention, or without that key `full_attention_interval`: those whose
/// number counted from 1 it divides. Of the rotary embedding for images (`mrope_section`) the part for text
/// counts. Multi-token prediction is carried through unread, as Hugging Face's class does.
extern const Family qwen3_5_family;

/// Qwen 3.5 MoE (`qwen3_5_moe_text`, Qwen3_5MoeForCausalLM), alone and in Qwen3_5MoeForConditionalGeneration:
/// the same with experts in every layer, behind a softmax router whose weights of a token add up to 1, and a
/// shared expert times a sigmoid of its own.
extern const Family qwen3_5_moe_family;

}  // namespace nemocube

#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Llama 2 and 3 (`llama`, LlamaForCausalLM). A layer of the files is two blocks: attention with a rotary
/// embedding, and an MLP with a SiLU gate, each with its own norm.
///
/// config.json: the keys of Hugging Face's LlamaConfig, whose defaults count where a key is absent;
/// num_key_value_heads and head_dim follow from num_attention_heads and hidden_size. `attention_bias` is of
/// all four projections of attention, `mlp_bias` of all three of the MLP. The rotary embedding:
/// data/hf/rope_keys.h. `attention_dropout`, `sliding_window` and `pretraining_tp` have no effect, which a
/// warning says of the first two where they ask for something. hidden_act other than silu is refused.
///
/// Hugging Face's class gives the embedding of pad_token_id no gradient from lookups (padding_idx). Here it
/// has one. That changes training only where the id also stands for something else, such as the end of a
/// turn.
extern const Family llama_family;

}  // namespace nemocube

#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Nemotron-NAS (`nemotron-nas`, DeciLMForCausalLM: Llama-Nemotron Super and Ultra): a Llama
/// (data/hf/families/decoder_layers.h) whose layers a search has pruned one by one.
///
/// config.json: `block_configs` says of each layer what its attention and its MLP are. Either may be absent
/// (`no_op`), or one square linear layer (`replace_with_linear`). Of others attention has
/// `n_heads_in_group` query heads for each key and value head, and an MLP the width
///     round_up(int(2 ffn_mult hidden_size / 3), 256)
/// A layer may have neither, and then is no block at all. Other keys are those of Llama's config. Refused are
/// windows, attention sinks and sparse parts, which no published model has, and the keys of later searches
/// (`intermediate_size`, `gated`, `hidden_act` of an MLP, Mamba, experts).
/// Source: NVIDIA, modeling_decilm.py and configuration_decilm.py of Llama-3_3-Nemotron-Super-49B-v1.
extern const Family decilm_family;

/// The width of an MLP: see above.
std::int64_t decilm_intermediate_size(double ffn_mult, std::int64_t hidden_size);

}  // namespace nemocube

#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// NVIDIA Nemotron-H and Nemotron 3: Mamba-2, attention, squared-ReLU MLP and mixture-of-experts blocks, one
/// mixer in a layer. Its config.json, in every spelling found in published checkpoints:
///
/// layers      `layers_block_type` or `layer_types` (a list of mamba/linear_attention/M,
///             attention/full_attention/ *, mlp/-, moe/E) wins over `hybrid_override_pattern` (a string of
///             M * - E, see parse_pattern, or a list)
/// prediction  `mtp_layers_block_type` wins over `mtp_hybrid_override_pattern` unless the list is the
///             default, attention + moe; the pattern may also follow the layers' pattern after a '/'
/// aliases     those of the sizes of blocks (model/blocks), and norm_eps, rms_norm_eps
/// blocks      may have sizes of their own: `per_layer_config` (data/hf/per_layer_config.h)
/// refused     NemotronHPuzzle (`block_configs`)
///
/// num_key_value_heads: null means num_attention_heads. A warning names keys that seem to shape the model but
/// have no effect, here as in Hugging Face's class: attention_dropout, hidden_dropout, attention_bias,
/// sliding_window, n_shared_experts (each MoE block has one shared expert).
///
/// Source: transformers, models/nemotron_h.
extern const Family nemotron_h_family;

/// AutoModel's count for the family (nemo_automodel/components/utils/flops_utils.py). It differs from three
/// times forward_flops_per_token(): attention has the width hidden_size instead of heads x head_dim, a `-`
/// block three matrices instead of two, and the scan 7 d N operations a token whatever the chunk. Published
/// models come out at 0.98 to 1.28 times that.
double nemotron_h_automodel_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length);

}  // namespace nemocube

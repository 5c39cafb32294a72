#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Qwen 3 MoE (`qwen3_moe`, Qwen3MoeForCausalLM): layers as Qwen 3's, of which most have experts in the place
/// of the MLP: a softmax router without bias, gated experts, no shared expert.
///
/// config.json: the keys of Hugging Face's Qwen3MoeConfig, whose defaults count where a key is absent. A
/// layer has an MLP of `intermediate_size` where `mlp_only_layers` lists the layer or where
/// `decoder_sparse_step` does not divide the layer's number counted from 1. With `use_sliding_window` every
/// layer has the window `sliding_window`. `output_router_logits` and `router_aux_loss_coef` do nothing:
/// model.moe.aux_loss_coeff of a recipe asks for the loss.
extern const Family qwen3_moe_family;

}  // namespace nemocube

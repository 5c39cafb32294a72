#pragma once
#include "data/hf/families/decoder_layers.h"
#include "model/tensor_name.h"

/// The names of Gemma 4's tensors, of both of its families.
namespace nemocube::gemma4 {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;
inline constexpr int moe_slot = 2;     ///< experts and the MLP beside them, in the place of the MLP
inline constexpr int inputs_slot = 3;  ///< what per-layer inputs add

/// One for each family: a config is of the family whose table its names have.
extern const NameTable text_names, unified_names;

}  // namespace nemocube::gemma4

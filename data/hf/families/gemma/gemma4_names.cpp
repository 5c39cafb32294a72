#include "data/hf/families/gemma/gemma4_names.h"

#include <array>

namespace nemocube::gemma4 {
namespace {

// Of names that several blocks of a layer may have, the row of the last such block comes first.
constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::front, "embed_tokens_per_layer", "model.embed_tokens_per_layer"},
    NameRow{NamePart::front, "per_layer_model_projection", "model.per_layer_model_projection"},
    NameRow{NamePart::front, "per_layer_projection_norm", "model.per_layer_projection_norm"},
    NameRow{NamePart::block, layer_scalar, "model.layers.{}.layer_scalar", inputs_slot},
    NameRow{NamePart::block, layer_scalar, "model.layers.{}.layer_scalar", moe_slot},
    NameRow{NamePart::block, layer_scalar, "model.layers.{}.layer_scalar", mlp_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_attention_layernorm", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.pre_feedforward_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_feedforward_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "shared_norm", "model.layers.{}.pre_feedforward_layernorm", moe_slot},
    NameRow{NamePart::mixer, "shared_experts", "model.layers.{}.mlp", moe_slot},
    NameRow{NamePart::mixer, "shared_post_norm", "model.layers.{}.post_feedforward_layernorm_1", moe_slot},
    NameRow{NamePart::mixer, "gate.scale", "model.layers.{}.router.scale", moe_slot},
    NameRow{NamePart::mixer, "gate.per_expert_scale", "model.layers.{}.router.per_expert_scale", moe_slot},
    NameRow{NamePart::mixer, "gate", "model.layers.{}.router.proj", moe_slot},
    NameRow{NamePart::mixer, "experts_norm", "model.layers.{}.pre_feedforward_layernorm_2", moe_slot},
    NameRow{NamePart::mixer, "experts", "model.layers.{}.experts", moe_slot},
    NameRow{NamePart::mixer, "experts_post_norm", "model.layers.{}.post_feedforward_layernorm_2", moe_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_feedforward_layernorm", moe_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.moe", moe_slot},
    NameRow{NamePart::mixer, "per_layer_input_gate", "model.layers.{}.per_layer_input_gate", inputs_slot},
    NameRow{NamePart::mixer, "per_layer_projection", "model.layers.{}.per_layer_projection", inputs_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.per_layer_input", inputs_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_per_layer_input_norm", inputs_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr std::array<std::string_view, 2> stacks{"experts.gate_up_proj", "experts.down_proj"};
constexpr std::array aliases{
    NameAlias{"embed_tokens", "model.embed_tokens"},
    NameAlias{"embed_tokens_per_layer", "model.embed_tokens_per_layer"},
    NameAlias{"per_layer_model_projection", "model.per_layer_model_projection"},
    NameAlias{"per_layer_projection_norm", "model.per_layer_projection_norm"},
    NameAlias{"layers", "model.layers"},
    NameAlias{"norm", "model.norm"},
};
constexpr std::string_view keys_of_layer = "model.layers.{}.self_attn.k_proj";
constexpr std::array unread{
    UnreadRow{keys_of_layer, keys_of_layer},
    UnreadRow{"model.layers.{}.self_attn.v_proj", keys_of_layer},
    UnreadRow{"model.layers.{}.self_attn.k_norm", keys_of_layer},
    UnreadRow{"model.layers.{}.self_attn.v_norm", keys_of_layer},
};

}  // namespace

constinit const NameTable text_names{.rows = rows, .stacks = stacks, .aliases = aliases, .unread = unread};
constinit const NameTable unified_names{.rows = rows, .stacks = stacks, .aliases = aliases, .unread = unread};

}  // namespace nemocube::gemma4

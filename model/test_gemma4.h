#pragma once
#include <array>

#include "model/blocks/attention/attention_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "model/test_configs.h"

namespace nemocube::testing {

inline constexpr std::array gemma4_rows{
    NameRow{NamePart::front, "", "model"},
    NameRow{NamePart::block, "", "model.layers.{}.attention", 0},
    NameRow{NamePart::mixer, "", "model.layers.{}.attention.mixer", 0},
    NameRow{NamePart::block, "", "model.layers.{}.mlp", 1},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp.mixer", 1},
    NameRow{NamePart::block, "", "model.layers.{}.input", 2},
    NameRow{NamePart::mixer, "", "model.layers.{}.input.mixer", 2},
    NameRow{NamePart::tail, "", "tail"},
};
inline constexpr NameTable gemma4_names{.rows = gemma4_rows};

/// Four layers of attention, an MLP or experts, and per-layer inputs, as in Gemma 4. Layers 0 and 2 have a
/// window; layers 1 and 3 have wider heads and make their values of their keys. Layers 2 and 3 read keys and
/// values of layers 0 and 1.
inline ModelConfig tiny_gemma4_config() {
  ModelConfig config = dense({"*", 12, 4, 2, 14, 4, 3, 5, 4});
  config.vocab_size = 23;
  config.blocks.clear();
  std::vector<LayerSlot> slots;
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    config.blocks.insert(config.blocks.end(),
                         {attention_block, layer % 2 == 0 ? mlp_block : moe_block, per_layer_input_block});
    for (int slot = 0; slot < 3; ++slot) slots.push_back({layer, slot});
  }
  config.names = {gemma4_names, slots};
  config.residual = Residual::norm_before_and_after;
  // Norms of so few numbers lose digits where epsilon is small.
  config.layer_norm_epsilon = 1;
  config.embedding_scale = 3.5;
  config.tie_word_embeddings = true;
  config.logit_softcap = 2;
  config.layer_scalars = true;
  config.per_layer_input.size = 5;
  config.mlp.gate = config.moe.gate = GateActivation::gelu_tanh;
  config.moe.n_routed_experts = 6, config.moe.intermediate_size = 7;
  config.moe.shared_expert_intermediate_size = 9;
  config.moe.scores = RouterScores::softmax;
  config.moe.correction_bias = config.moe.router_in_f32 = false;
  config.attention.head_dim = 4;
  config.attention.head_norm = NormKind::rmsnorm;
  config.attention.value_norm = true;
  config.attention.score_scale = 1;
  config.attention.window = 3;
  config.attention.rope = {.type = RopeType::standard, .rope_theta = 20};
  for (const std::int64_t layer : {1, 3}) {
    AttentionConfig& full = own_config(config, 3 * layer).attention;
    full.window = 0;
    full.head_dim = 8;
    full.num_key_value_heads = 1;
    full.keys_are_values = true;
    full.rope = {.type = RopeType::proportional, .rope_theta = 100, .partial_rotary_factor = 0.5};
    BlockConfig& experts = own_config(config, 3 * layer + 1);
    experts.residual = Residual::norm_after;
    experts.moe.own_norms = true;
  }
  for (const std::int64_t layer : {2, 3}) {
    own_config(config, 3 * layer).attention.kv_block = 3 * (layer - 2);
    if (layer == 2) own_config(config, 7).mlp.intermediate_size = 28;
  }
  for (const std::int64_t layer : {0, 1, 2, 3})
    own_config(config, 3 * layer + 2).residual = Residual::norm_after;
  return config;
}

}  // namespace nemocube::testing

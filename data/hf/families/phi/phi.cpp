#include "data/hf/families/phi/phi.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "o_proj", "model.layers.{}.self_attn.dense", attention_slot},
    NameRow{NamePart::mixer, "q_norm", "model.layers.{}.self_attn.q_layernorm", attention_slot},
    NameRow{NamePart::mixer, "k_norm", "model.layers.{}.self_attn.k_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::mixer, "up_proj", "model.layers.{}.mlp.fc1", mlp_slot},
    NameRow{NamePart::mixer, "down_proj", "model.layers.{}.mlp.fc2", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.final_layernorm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr std::array aliases{
    NameAlias{"embed_tokens", "model.embed_tokens"},
    NameAlias{"layers", "model.layers"},
    NameAlias{"final_layernorm", "model.final_layernorm"},
};
constexpr NameTable names{.rows = rows, .aliases = aliases};

constexpr decoder_layers::ActivationKey activation{"hidden_act", "gelu_new"};
constexpr const char* epsilon_key = "layer_norm_eps";

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"max_position_embeddings"}, config.max_position_embeddings);
  keys.key({"initializer_range"}, config.initializer_range);
  keys.key({epsilon_key}, config.layer_norm_epsilon);
  keys.key({"tie_word_embeddings"}, config.tie_word_embeddings);
}

/// Both names are of the tanh form of GELU, which are the same but for rounding.
void check_activation(const JsonView& object) {
  const auto given = object.find(activation.key);
  if (!given) return;
  if (const std::string_view name = given->string(); name != activation.name && name != "gelu_pytorch_tanh")
    given->refuse(cat('"', activation.name, '"'));
}

/// The MLP of each layer gets the norm that the attention got.
void share_norms(ModelConfig& config) {
  BlockConfig own = config.common();
  own.residual = Residual::shared_norm;
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    config.own_configs.emplace(config.names.first_block(layer) + mlp_slot, own);
}

void read(ModelConfig& config, const JsonView& object) {
  check_activation(object);
  config = decoder_layers::defaults();
  config.norm = NormKind::layernorm;
  config.layer_norm_epsilon = 1e-5;
  config.mlp.gate = std::nullopt;
  config.mlp.activation = MlpActivation::gelu_tanh;
  config.mlp.bias = config.attention.qkv_bias = config.attention.output_bias = config.head_bias = true;
  config.vocab_size = 51200;
  config.hidden_size = 2048;
  config.mlp.intermediate_size = 8192;
  config.attention.num_attention_heads = 32;
  config.max_position_embeddings = 2048;
  ReadKeys keys(object);
  visit_keys(config, keys);
  bool head_norms = false;
  keys.key({"qk_layernorm"}, head_norms);
  if (head_norms) config.attention.head_norm = NormKind::layernorm;
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings, {}, 0.5);
  decoder_layers::add_layers(config, object, names, 24, epsilon_key);
  share_norms(config);
  decoder_layers::warn_of_dropout(object, {"attention_dropout", "resid_pdrop", "embd_pdrop"});
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "PhiForCausalLM", phi_family.model_type, visit_keys, to, activation);
  to["qk_layernorm"] = config.attention.head_norm.has_value();
  write_rope(config.attention.rope, to);
  to["partial_rotary_factor"] = config.attention.rope.partial_rotary_factor;
}

constexpr std::string_view phi_tp_plans[] = {"phi_tp_plan"};

}  // namespace

constinit const Family phi_family{
    .model_type = "phi",
    .has_class = [](std::string_view name) { return is_class_named(name, "Phi"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = phi_tp_plans};

}  // namespace nemocube

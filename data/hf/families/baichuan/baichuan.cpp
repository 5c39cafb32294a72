#include "data/hf/families/baichuan/baichuan.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "qkv_proj", "model.layers.{}.self_attn.W_pack", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr NameTable names{.rows = rows, .aliases = decoder_layers::aliases};

constexpr const char *positions_key = "max_position_embeddings", *length_key = "model_max_length",
                     *z_loss_key = "z_loss_weight";

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"intermediate_size"}, config.mlp.intermediate_size);
  keys.key({"num_attention_heads"}, config.attention.num_attention_heads);
  keys.key({config.attention.alibi ? length_key : positions_key}, config.max_position_embeddings);
  keys.key({"initializer_range"}, config.initializer_range);
  keys.key({"rms_norm_eps"}, config.layer_norm_epsilon);
  keys.key({"tie_word_embeddings"}, config.tie_word_embeddings);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 64000;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 11008;
  config.attention.num_attention_heads = 32;
  config.attention.packed = true;
  config.pad_token_id = 0;
  config.attention.alibi = !object.find(positions_key);
  if (!config.attention.alibi) config.attention.rope = {.type = RopeType::standard, .rope_theta = 10000};
  ReadKeys keys(object);
  visit_keys(config, keys);
  if (const auto given = object.find(z_loss_key)) {
    config.normalized_head = true;
    config.z_loss_weight = given->number();
  }
  decoder_layers::add_layers(config, object, names, 32);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "BaichuanForCausalLM", baichuan_family.model_type, visit_keys, to);
  if (config.normalized_head) to[z_loss_key] = config.z_loss_weight;
}

constexpr std::string_view baichuan_tp_plans[] = {"baichuan_tp_plan"};

}  // namespace

constinit const Family baichuan_family{
    .model_type = "baichuan",
    .has_class =
        [](std::string_view name) { return name == "BaichuanForCausalLM" || name == "BaiChuanForCausalLM"; },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = baichuan_tp_plans};

}  // namespace nemocube

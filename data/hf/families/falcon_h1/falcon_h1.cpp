#include "data/hf/families/falcon_h1/falcon_h1.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_kinds.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"

namespace nemocube {
namespace {

constexpr int mamba_slot = 0, attention_slot = 1, mlp_slot = 2;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", mamba_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mamba", mamba_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.pre_ff_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.feed_forward", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.final_layernorm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr std::array aliases{
    NameAlias{"embed_tokens", "model.embed_tokens"},
    NameAlias{"layers", "model.layers"},
    NameAlias{"final_layernorm", "model.final_layernorm"},
};
constexpr NameTable names{.rows = rows, .aliases = aliases};

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  keys.key({"mlp_bias"}, config.mlp.bias);
  MambaConfig& mamba = config.mamba;
  keys.key({"mamba_n_heads"}, mamba.num_heads);
  keys.key({"mamba_n_groups"}, mamba.n_groups);
  keys.key({"mamba_d_state"}, mamba.ssm_state_size);
  keys.key({"mamba_d_conv"}, mamba.conv_kernel);
  keys.key({"mamba_chunk_size"}, mamba.chunk_size);
  keys.key({"mamba_conv_bias"}, mamba.use_conv_bias);
  keys.key({"mamba_proj_bias"}, mamba.in_proj_bias);
  keys.key({"projectors_bias"}, mamba.out_proj_bias);
  keys.key({"embedding_multiplier"}, config.embedding_scale);
  keys.key({"lm_head_multiplier"}, config.logit_scale);
  keys.key({"key_multiplier"}, config.attention.key_multiplier);
  keys.key({"attention_in_multiplier"}, config.attention.input_multiplier);
  keys.key({"attention_out_multiplier"}, config.attention.output_multiplier);
  keys.key({"ssm_in_multiplier"}, mamba.multipliers.input);
  keys.key({"ssm_out_multiplier"}, mamba.multipliers.output);
  decoder_layers::visit_other_keys(config, keys);
  keys.limits({"time_step_limit"}, mamba.time_step_limit_low, mamba.time_step_limit_high);
}

std::vector<double*> mlp_multipliers(ModelConfig& config) {
  return {&config.mlp.gate_multiplier, &config.mlp.output_multiplier};
}
std::vector<double*> ssm_multipliers(ModelConfig& config) {
  MambaMultipliers& by = config.mamba.multipliers;
  return {&by.z, &by.x, &by.b, &by.c, &by.dt};
}

void read_list(const JsonView& object, const char* key, const std::vector<double*>& values) {
  const auto list = object.find(key);
  if (!list) return;
  const std::vector<JsonView> elements = list->elements();
  if (elements.size() != values.size()) list->refuse(cat("a list of ", values.size(), " numbers"));
  for (std::size_t i = 0; i < values.size(); ++i) *values[i] = elements[i].number();
}
Json list_of(const std::vector<double*>& values) {
  Json list = Json::array();
  for (const double* value : values) list.push_back(*value);
  return list;
}

/// pre: the other sizes have been read.
void read_mixer_width(ModelConfig& config, const JsonView& object) {
  MambaConfig& mamba = config.mamba;
  std::int64_t width = 1024, expand = 2;
  ReadKeys keys(object);
  keys.key({"mamba_d_ssm"}, width);
  keys.key({"mamba_expand"}, expand);
  const bool expanded = object.has_null("mamba_d_ssm");
  if (expanded) width = expand * config.hidden_size;
  const std::string of = expanded ? "mamba_expand x hidden_size" : "mamba_d_ssm";
  require(mamba.num_heads > 0 && width % mamba.num_heads == 0, object.file(), ": ", of,
          ": want a multiple of mamba_n_heads ", mamba.num_heads, ", got ", width);
  mamba.head_dim = width / mamba.num_heads;
  const auto given = object.find("mamba_d_head");
  if (!given || given->value() == "auto") return;
  if (!given->value().is_number_integer() || given->integer() != mamba.head_dim)
    given->refuse(cat("\"auto\" or ", mamba.head_dim, ", which is ", of, ' ', width, " by mamba_n_heads ",
                      mamba.num_heads));
}

void read_norm(ModelConfig& config, const JsonView& object) {
  bool normed = false, before = true;
  ReadKeys keys(object);
  keys.key({"mamba_rms_norm"}, normed);
  keys.key({"mamba_norm_before_gate"}, before);
  config.mamba.norm = !normed ? MambaNorm::none : before ? MambaNorm::before_gate : MambaNorm::after_gate;
}

void warn_without_effect(const JsonView& object) {
  decoder_layers::warn_of_dropout(object);
  if (const auto mlp = object.find("mamba_use_mlp"); mlp && !mlp->boolean())
    log_warning(object.file(), ": 'mamba_use_mlp' is false and has no effect: each layer has an MLP");
  if (find_filled(object, "attn_layer_indices"))
    log_warning(object.file(), ": 'attn_layer_indices' has no effect: each layer has attention");
}

/// The attention of each layer gets the norm that the mixer before it got.
void share_norms(ModelConfig& config) {
  BlockConfig own = config.common();
  own.residual = Residual::shared_norm;
  for (std::int64_t i = 0; i < config.names.layers(config.num_layers()); ++i)
    config.own_configs.emplace(config.names.first_block(i) + attention_slot, own);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.layer_norm_epsilon = 1e-5;
  config.round_embedding_scale = false;
  config.vocab_size = 128000;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 14336;
  config.attention.num_attention_heads = 32;
  config.attention.num_key_value_heads = 8;
  config.max_position_embeddings = 8192;
  config.mamba.num_heads = 128;
  config.mamba.n_groups = 1;
  config.mamba.ssm_state_size = 256;
  config.mamba.chunk_size = 256;
  config.mamba.start = MambaStart::plain;
  config.pad_token_id = 0;
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  read_list(object, "mlp_multipliers", mlp_multipliers(config));
  read_list(object, "ssm_multipliers", ssm_multipliers(config));
  read_mixer_width(config, object);
  read_norm(config, object);
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  using decoder_layers::LayerBlock;
  const std::array of_layer{LayerBlock{mamba_block, mamba_slot}, LayerBlock{attention_block, attention_slot},
                            LayerBlock{mlp_block, mlp_slot}};
  decoder_layers::add_layers(config, object, names, 32, of_layer);
  share_norms(config);
  warn_without_effect(object);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "FalconH1ForCausalLM", falcon_h1_family.model_type, visit_keys, to);
  ModelConfig values = config;
  to["mlp_multipliers"] = list_of(mlp_multipliers(values));
  to["ssm_multipliers"] = list_of(ssm_multipliers(values));
  to["mamba_d_ssm"] = config.mamba.inner();
  to["mamba_d_head"] = config.mamba.head_dim;
  to["mamba_rms_norm"] = config.mamba.norm != MambaNorm::none;
  to["mamba_norm_before_gate"] = config.mamba.norm == MambaNorm::before_gate;
  write_rope(config.attention.rope, to);
}

constexpr std::string_view falcon_h1_tp_plans[] = {"falcon_h1_tp_plan"};

}  // namespace

constinit const Family falcon_h1_family{
    .model_type = "falcon_h1",
    .has_class = [](std::string_view name) { return is_class_named(name, "FalconH1"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = falcon_h1_tp_plans};

}  // namespace nemocube

#include "data/hf/families/qwen/qwen3_5.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/gated_delta_net/gated_delta_net_block.h"
#include "model/blocks/moe/moe_block.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;

constexpr const char *linear_layer = "linear_attention", *full_layer = "full_attention";

constexpr NameRow of_delta_net(std::string_view member, std::string_view text) {
  return {NamePart::mixer, member, text, attention_slot};
}

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    of_delta_net("A_log", "model.layers.{}.linear_attn.A_log"),
    of_delta_net("dt_bias", "model.layers.{}.linear_attn.dt_bias"),
    of_delta_net("conv1d", "model.layers.{}.linear_attn.conv1d"),
    of_delta_net("norm", "model.layers.{}.linear_attn.norm"),
    of_delta_net("out_proj", "model.layers.{}.linear_attn.out_proj"),
    of_delta_net("in_proj_qkv", "model.layers.{}.linear_attn.in_proj_qkv"),
    of_delta_net("in_proj_z", "model.layers.{}.linear_attn.in_proj_z"),
    of_delta_net("in_proj_b", "model.layers.{}.linear_attn.in_proj_b"),
    of_delta_net("in_proj_a", "model.layers.{}.linear_attn.in_proj_a"),
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "shared_experts", "model.layers.{}.mlp.shared_expert", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr NameTable names{.rows = rows, .aliases = decoder_layers::aliases};
constexpr std::array<std::string_view, 2> stacks{"experts.gate_up_proj", "experts.down_proj"};
constexpr NameTable moe_names{.rows = rows, .stacks = stacks, .aliases = decoder_layers::aliases};

void visit_attention(ModelConfig& config, ConfigKeys& keys) {
  config.attention.visit(keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  config.gated_delta_net.visit(keys);
  decoder_layers::visit_other_keys(config, keys);
}

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"intermediate_size"}, config.mlp.intermediate_size);
  visit_attention(config, keys);
}

void visit_moe_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"moe_intermediate_size"}, config.moe.intermediate_size);
  keys.key({"shared_expert_intermediate_size"}, config.moe.shared_expert_intermediate_size);
  keys.key({"num_experts", "num_local_experts"}, config.moe.n_routed_experts);
  keys.key({"num_experts_per_tok"}, config.moe.num_experts_per_tok);
  visit_attention(config, keys);
}

std::int64_t first_block_of(const ModelConfig& config, std::int64_t layer) {
  return config.names.first_block(layer);
}

BlockKind& kind_of(ModelConfig& config, std::int64_t layer, int slot) {
  return config.blocks[static_cast<std::size_t>(first_block_of(config, layer) + slot)];
}

bool has_attention(const ModelConfig& config, std::int64_t layer) {
  return config.blocks[static_cast<std::size_t>(first_block_of(config, layer) + attention_slot)] ==
         attention_block;
}

/// Puts Gated DeltaNet in the layers that are to have it.
void read_layer_types(ModelConfig& config, const JsonView& object) {
  std::int64_t interval = 4;
  ReadKeys(object).key({"full_attention_interval"}, interval);
  require(interval >= 1, object.file(), ": 'full_attention_interval': want at least 1, got ", interval);
  const std::int64_t layers = config.names.layers(config.num_layers());
  std::vector<bool> full;
  if (const auto types = object.find("layer_types"); types && !object.has_null("layer_types")) {
    for (const JsonView& type : types->elements()) {
      const std::string_view word = type.string();
      if (word != linear_layer && word != full_layer)
        type.refuse(cat('"', linear_layer, "\" or \"", full_layer, '"'));
      full.push_back(word == full_layer);
    }
    if (std::ssize(full) != layers) types->refuse(cat("one type for each of ", counted(layers, "layer")));
  } else {
    for (std::int64_t layer = 0; layer < layers; ++layer) full.push_back((layer + 1) % interval == 0);
  }
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if (!full[static_cast<std::size_t>(layer)])
      kind_of(config, layer, attention_slot) = gated_delta_net_block;
}

/// Refuses what no model of this family has.
void check_other_keys(const JsonView& object) {
  if (const auto gate = object.find("attn_output_gate"); gate && !gate->boolean()) gate->refuse("true");
  if (const auto dense = object.find("mlp_only_layers"); dense && !object.has_null("mlp_only_layers"))
    if (!dense->elements().empty()) dense->refuse("an empty list: these models have no such layers");
  if (const auto dtype = object.find("mamba_ssm_dtype"); dtype && dtype->string() != "float32")
    log_warning(object.file(), ": 'mamba_ssm_dtype' is ", dtype->string(),
                " and has no effect: states are float32");
}

/// What both families have.
void read_common(ModelConfig& config, const JsonView& object, const NameTable& table, std::int64_t layers,
                 void (*visit)(ModelConfig&, ConfigKeys&)) {
  check_other_keys(object);
  config.norm = NormKind::rmsnorm_one_plus_w;
  config.attention.head_norm = NormKind::rmsnorm_one_plus_w;
  config.attention.output_gate = true;
  config.vocab_size = 248320;
  config.attention.num_attention_heads = 16;
  config.attention.head_dim = 256;
  config.max_position_embeddings = 32768;
  config.bos_token_id = std::nullopt;
  config.eos_token_id.clear();
  ReadKeys keys(object);
  visit(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  constexpr std::string_view of_images[] = {"mrope_section", "mrope_interleaved"};
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings, of_images, 0.25);
  decoder_layers::add_layers(config, object, table, layers);
  read_layer_types(config, object);
  decoder_layers::warn_of_dropout(object);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 12288;
  config.attention.num_key_value_heads = 4;
  read_common(config, object, names, 32, visit_keys);
}

void read_moe(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.hidden_size = 2048;
  config.attention.num_key_value_heads = 2;
  config.moe.n_routed_experts = 256;
  config.moe.num_experts_per_tok = 8;
  config.moe.intermediate_size = config.moe.shared_expert_intermediate_size = 512;
  config.moe.scores = RouterScores::softmax;
  config.moe.correction_bias = config.moe.router_in_f32 = false;
  config.moe.gate = GateActivation::silu;
  config.moe.shared_expert_gate = true;
  read_common(config, object, moe_names, 40, visit_moe_keys);
  require(config.moe.has_shared_expert(), object.file(),
          ": 'shared_expert_intermediate_size': want at least 1, got ",
          config.moe.shared_expert_intermediate_size);
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    kind_of(config, layer, mlp_slot) = moe_block;
}

void write_common(const ModelConfig& config, Json& to) {
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    types.push_back(has_attention(config, layer) ? full_layer : linear_layer);
  to["layer_types"] = std::move(types);
  write_rope_parameters(config.attention.rope, to);
  to["rope_parameters"]["partial_rotary_factor"] = config.attention.rope.partial_rotary_factor;
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "Qwen3_5ForCausalLM", qwen3_5_family.model_type, visit_keys, to);
  write_common(config, to);
}

void write_moe(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "Qwen3_5MoeForCausalLM", qwen3_5_moe_family.model_type, visit_moe_keys,
                             to);
  write_common(config, to);
}

double step_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& c = setup.config;
  const GatedDeltaNetConfig& d = c.gated_delta_net;
  const double h = real(c.hidden_size), keys = real(d.key_width()), values = real(d.value_width()),
               groups = real(c.attention.num_key_value_heads) / real(c.attention.num_attention_heads),
               attention = real(c.attention.q_width()) * (h * (2 * groups + 2 + 1) + real(length)),
               linear = h * (2 * keys + 2 * values + 2 * real(d.num_value_heads)) +
                        real(d.conv_kernel) * (2 * keys + values) + 4 * values * real(d.value_head_dim) +
                        h * values;
  double of_token = h * real(c.vocab_size);
  for (std::int64_t layer = 0; layer < c.names.layers(c.num_layers()); ++layer)
    of_token += has_attention(c, layer) ? attention : linear;
  const double width = c.has_experts() ? real(c.moe.num_experts_per_tok) * real(c.moe.intermediate_size) +
                                             real(c.moe.shared_expert_intermediate_size)
                                       : real(c.mlp.intermediate_size);
  of_token += 3 * h * width * real(c.names.layers(c.num_layers()));
  return 6 * real(sequences) * real(length) * of_token;
}

constexpr std::array wrappers{Wrapper{"qwen3_5", false}};
constexpr std::array moe_wrappers{Wrapper{"qwen3_5_moe", false}};
constexpr std::string_view tp_plans[] = {"qwen3_5_tp_plan"};
constexpr std::string_view moe_tp_plans[] = {"qwen3_5_moe_tp_plan"};

}  // namespace

constinit const Family qwen3_5_family{
    .model_type = "qwen3_5_text",
    .has_class = [](std::string_view name) { return is_class_named(name, "Qwen3_5"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = step_flops,
    .wrappers = wrappers,
    .tp_plans = tp_plans};

constinit const Family qwen3_5_moe_family{
    .model_type = "qwen3_5_moe_text",
    .has_class = [](std::string_view name) { return is_class_named(name, "Qwen3_5Moe"); },
    .names = &moe_names,
    .read = read_moe,
    .write = write_moe,
    .automodel_step_flops = step_flops,
    .wrappers = moe_wrappers,
    .tp_plans = moe_tp_plans};

}  // namespace nemocube

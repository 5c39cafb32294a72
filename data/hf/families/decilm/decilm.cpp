#include "data/hf/families/decilm/decilm.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/linear_layer/linear_block.h"
#include "model/blocks/mlp/mlp_block.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "linear", "model.layers.{}.self_attn.linear_attn", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "linear", "model.layers.{}.mlp.linear_mlp", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr NameTable names{.rows = rows, .aliases = decoder_layers::aliases};

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"num_attention_heads"}, config.attention.num_attention_heads);
  keys.key({"head_dim"}, config.attention.head_dim);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  keys.key({"mlp_bias"}, config.mlp.bias);
  decoder_layers::visit_other_keys(config, keys);
}

/// What one half of a layer is: nothing, a linear layer, or a mixer of this size.
struct Half {
  bool absent = false, linear = false;
  std::int64_t size = 0;  ///< key and value heads, or the width of the MLP
};

/// Refuses the keys of `part` that are not in `known` and ask for something.
void refuse_others(const JsonView& part, std::initializer_list<const char*> known) {
  for (const auto& [key, value] : part.value().items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    if (value.is_null() || value == Json(false)) continue;
    part.at(key).refuse("null: this part of Nemotron-NAS models is not supported");
  }
}

Half read_half(const JsonView& part) {
  Half half;
  ReadKeys keys(part);
  keys.key({"no_op"}, half.absent);
  keys.key({"replace_with_linear"}, half.linear);
  return half;
}

Half read_attention(const JsonView& part, std::int64_t heads) {
  refuse_others(part, {"n_heads_in_group", "no_op", "replace_with_linear"});
  Half half = read_half(part);
  if (half.absent || half.linear) return half;
  const JsonView group = part.at("n_heads_in_group");
  const std::int64_t in_group = group.integer();
  if (in_group < 1 || heads % in_group != 0) group.refuse(cat("a divisor of num_attention_heads ", heads));
  half.size = heads / in_group;
  return half;
}

Half read_mlp(const JsonView& part, std::int64_t hidden) {
  refuse_others(part, {"ffn_mult", "no_op", "replace_with_linear"});
  Half half = read_half(part);
  if (half.absent || half.linear) return half;
  const JsonView mult = part.at("ffn_mult");
  if (!(mult.number() > 0 && mult.number() <= 1024)) mult.refuse("a number above 0, at most 1024");
  half.size = decilm_intermediate_size(mult.number(), hidden);
  return half;
}

/// The size that most of these have: those of the others are configs of their own.
std::int64_t usual_size(const std::vector<Half>& halves, std::int64_t otherwise) {
  std::map<std::int64_t, int> counts;
  for (const Half& half : halves)
    if (half.size > 0) ++counts[half.size];
  if (counts.empty()) return otherwise;
  return std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })->first;
}

void add_layers(ModelConfig& config, const JsonView& object) {
  std::vector<Half> attention, mlp;
  for (const JsonView& layer : object.at("block_configs").elements()) {
    attention.push_back(read_attention(layer.at("attention"), config.attention.num_attention_heads));
    mlp.push_back(read_mlp(layer.at("ffn"), config.hidden_size));
  }
  const std::int64_t layers = std::ssize(attention);
  if (const auto count = object.find("num_hidden_layers"); count && count->integer() != layers)
    count->refuse(cat(layers, ", as many as block_configs has"));
  config.attention.num_key_value_heads = usual_size(attention, config.attention.num_attention_heads);
  config.mlp.intermediate_size = usual_size(mlp, config.hidden_size);

  std::vector<LayerSlot> slots;
  const auto add = [&](const Half& half, std::int64_t layer, int slot) {
    if (half.absent) return;
    const bool is_attention = slot == attention_slot;
    BlockConfig own = config.common();
    (is_attention ? own.attention.num_key_value_heads : own.mlp.intermediate_size) = half.size;
    if (!half.linear && !(own == config.common()))
      config.own_configs.emplace(config.num_layers(), std::move(own));
    config.blocks.push_back(half.linear ? linear_block : is_attention ? attention_block : mlp_block);
    slots.push_back({layer, slot});
  };
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    add(attention[static_cast<std::size_t>(layer)], layer, attention_slot);
    add(mlp[static_cast<std::size_t>(layer)], layer, mlp_slot);
  }
  require(!slots.empty(), object.file(), ": 'block_configs': want a layer that is not empty");
  config.names = {names, std::move(slots), layers};
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.attention.num_attention_heads = 32;
  config.max_position_embeddings = 2048;
  ReadKeys keys(object);
  visit_keys(config, keys);
  decoder_layers::set_head_dim(config, object);
  config.attention.output_bias = config.attention.qkv_bias;
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  add_layers(config, object);
  decoder_layers::warn_of_dropout(object);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "DeciLMForCausalLM", decilm_family.model_type, visit_keys, to);
  to["num_key_value_heads"] = to["intermediate_size"] = nullptr;
  write_rope(config.attention.rope, to);

  const Json absent = {{"no_op", true}, {"replace_with_linear", false}},
             linear = {{"no_op", false}, {"replace_with_linear", true}},
             present = {{"no_op", false}, {"replace_with_linear", false}};
  Json layers = Json::array();
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer) {
    Json parts = {{"attention", absent}, {"ffn", absent}};
    for (std::int64_t i = config.names.first_block(layer); i < config.names.first_block(layer + 1); ++i) {
      const BlockConfig& block = config.block(i);
      const BlockKind kind = config.blocks[static_cast<std::size_t>(i)];
      Json& part = parts[config.names.slot(i) == attention_slot ? "attention" : "ffn"];
      part = kind == linear_block ? linear : present;
      if (kind == attention_block)
        part["n_heads_in_group"] = block.attention.num_attention_heads / block.attention.num_key_value_heads;
      if (kind == mlp_block)
        part["ffn_mult"] = 1.5 * real(block.mlp.intermediate_size) / real(block.hidden_size);
    }
    layers.push_back(std::move(parts));
  }
  to["block_configs"] = std::move(layers);
}

/// As decoder_layers::automodel_flops(), of the blocks that there are.
double step_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& c = setup.config;
  const double h = real(c.hidden_size);
  double of_token = 6 * h * real(c.vocab_size);
  for (std::int64_t i = 0; i < c.num_layers(); ++i) {
    const BlockConfig& block = c.block(i);
    const BlockKind kind = c.blocks[static_cast<std::size_t>(i)];
    if (kind == attention_block)
      of_token +=
          12 * h * h *
              (1 + real(block.attention.num_key_value_heads) / real(block.attention.num_attention_heads)) +
          6 * h * real(length);
    else
      of_token += kind == mlp_block ? 18 * h * real(block.mlp.intermediate_size) : 6 * h * h;
  }
  return real(sequences) * real(length) * of_token;
}

// The first name is AutoModel's.
constexpr std::string_view decilm_tp_plans[] = {"llama_nemotron_super_tp_plan", "decilm_tp_plan"};

}  // namespace

std::int64_t decilm_intermediate_size(double ffn_mult, std::int64_t hidden_size) {
  constexpr std::int64_t multiple = 256;
  const auto width = static_cast<std::int64_t>(2 * ffn_mult * static_cast<double>(hidden_size) / 3);
  return (width + multiple - 1) / multiple * multiple;
}

constinit const Family decilm_family{
    .model_type = "nemotron-nas",
    .has_class = [](std::string_view name) { return is_class_named(name, "DeciLM"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = step_flops,
    .tp_plans = decilm_tp_plans};

}  // namespace nemocube

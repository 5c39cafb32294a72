#include "data/hf/families/llama/llama.h"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/config_keys.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp_block.h"

namespace nemocube {
namespace {

constexpr int attention_slot = 0, mlp_slot = 1;
constexpr auto from_others = std::numeric_limits<std::int64_t>::min();  // a size that follows from others

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
/// Of models saved without their head, and of language models inside others.
constexpr std::array aliases{
    NameAlias{"embed_tokens", "model.embed_tokens"},
    NameAlias{"layers", "model.layers"},
    NameAlias{"norm", "model.norm"},
};
constexpr NameTable names{.rows = rows, .aliases = aliases};

bool is_class_of_family(std::string_view architecture) {
  return architecture == "LlamaForCausalLM" || architecture == "LlamaModel";
}

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  config.mlp.visit(keys);
  config.attention.visit(keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  keys.key({"max_position_embeddings"}, config.max_position_embeddings);
  keys.key({"initializer_range"}, config.initializer_range);
  keys.key({"rms_norm_eps"}, config.layer_norm_epsilon);
  keys.key({"tie_word_embeddings"}, config.tie_word_embeddings);
}

ModelConfig defaults() {
  ModelConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 11008;
  config.attention.num_attention_heads = 32;
  config.attention.num_key_value_heads = config.attention.head_dim = from_others;
  config.layer_norm_epsilon = 1e-6;
  config.max_position_embeddings = 2048;
  config.pad_token_id = std::nullopt;
  config.mlp.gate = GateActivation::silu;
  config.rescale_prenorm_residual = false;
  return config;
}

void add_layers(ModelConfig& config, std::int64_t layers) {
  std::vector<LayerSlot> places;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    config.blocks.insert(config.blocks.end(), {attention_block, mlp_block});
    places.insert(places.end(), {{layer, attention_slot}, {layer, mlp_slot}});
  }
  config.names = {names, std::move(places)};
}

void warn_without_effect(const JsonView& object) {
  if (const auto value = object.find("attention_dropout"); value && value->number() != 0)
    log_warning(object.file(), ": 'attention_dropout' is ", value->number(),
                " and has no effect: nothing is dropped in attention");
  if (const auto value = object.find("sliding_window"))
    log_warning(object.file(), ": 'sliding_window' is ", brief(value->value()),
                " and has no effect in models of this type");
}

void read(ModelConfig& config, const JsonView& object) {
  if (const auto activation = object.find("hidden_act"))
    if (const std::string_view name = activation->string(); name != "silu" && name != "swish")  // two names of one
      activation->refuse("\"silu\"");
  config = defaults();
  ReadKeys keys(object);
  visit_keys(config, keys);
  std::int64_t layers = 32;
  keys.key({"num_hidden_layers"}, layers);
  require(config.layer_norm_epsilon > 0, object.file(), ": 'rms_norm_eps': want a number above 0, got ",
          config.layer_norm_epsilon);
  constexpr std::int64_t most_layers = 1 << 20;
  require(layers >= 1 && layers <= most_layers, object.file(), ": 'num_hidden_layers': want 1 to ",
          most_layers, ", got ", layers);
  AttentionConfig& attention = config.attention;
  attention.output_bias = attention.qkv_bias;
  if (attention.num_key_value_heads == from_others)
    attention.num_key_value_heads = attention.num_attention_heads;
  if (attention.head_dim == from_others) {
    require(attention.num_attention_heads > 0 && config.hidden_size % attention.num_attention_heads == 0,
            object.file(), ": 'head_dim' is missing, and hidden_size ", config.hidden_size,
            " is no multiple of num_attention_heads ", attention.num_attention_heads);
    attention.head_dim = config.hidden_size / attention.num_attention_heads;
  }
  attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  add_layers(config, layers);
  warn_without_effect(object);
}

void write(const ModelConfig& config, Json& to) {
  to["architectures"] = {"LlamaForCausalLM"};
  to["model_type"] = llama_family.model_type;
  to["num_hidden_layers"] = config.names.layers(config.num_layers());
  to["hidden_act"] = "silu";
  ModelConfig values = config;
  WriteKeys keys(to);
  visit_keys(values, keys);
  keys.finish();
  write_rope(config.attention.rope, to);
}

}  // namespace

constinit const Family llama_family{.model_type = "llama",
                                    .has_class = is_class_of_family,
                                    .names = &names,
                                    .refuse_relatives = [](const JsonView&) {},
                                    .read = read,
                                    .write = write,
                                    .automodel_step_flops = llama_automodel_flops};

double llama_automodel_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& c = setup.config;
  const double h = real(c.hidden_size), layers = real(c.names.layers(c.num_layers())),
               groups = real(c.attention.num_key_value_heads) / real(c.attention.num_attention_heads);
  return real(sequences) * real(length) *
         (layers * h * (12 * h + 12 * h * groups + 18 * real(c.mlp.intermediate_size) + 6 * real(length)) +
          6 * h * real(c.vocab_size));
}

}  // namespace nemocube

#include "data/hf/families/decoder_layers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp_block.h"

namespace nemocube::decoder_layers {
namespace {

constexpr const char *sliding = "sliding_attention", *full = "full_attention";

/// The block of a layer's attention.
std::int64_t attention_block_of(const ModelConfig& config, std::int64_t layer) {
  return config.names.first_block(layer) + attention_slot;
}

}  // namespace

ModelConfig defaults() {
  ModelConfig config;
  config.attention.num_key_value_heads = config.attention.head_dim = from_others;
  config.layer_norm_epsilon = 1e-6;
  config.pad_token_id = std::nullopt;
  config.mlp.gate = GateActivation::silu;
  config.rescale_prenorm_residual = false;
  return config;
}

void visit_sizes(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"intermediate_size"}, config.mlp.intermediate_size);
  config.attention.visit(keys);
}

void visit_other_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"max_position_embeddings"}, config.max_position_embeddings);
  keys.key({"initializer_range"}, config.initializer_range);
  keys.key({"rms_norm_eps"}, config.layer_norm_epsilon);
  keys.key({"tie_word_embeddings"}, config.tie_word_embeddings);
}

void set_head_dim(ModelConfig& config, const JsonView& object) {
  AttentionConfig& attention = config.attention;
  if (attention.head_dim != from_others) return;
  require(attention.num_attention_heads > 0 && config.hidden_size % attention.num_attention_heads == 0,
          object.file(), ": 'head_dim' is missing, and hidden_size ", config.hidden_size,
          " is no multiple of num_attention_heads ", attention.num_attention_heads);
  attention.head_dim = config.hidden_size / attention.num_attention_heads;
}

void add_layers(ModelConfig& config, const JsonView& object, const NameTable& table, std::int64_t layers,
                const char* epsilon_key) {
  const std::array of_layer{LayerBlock{attention_block, attention_slot}, LayerBlock{mlp_block, mlp_slot}};
  add_layers(config, object, table, layers, of_layer, epsilon_key);
}

void add_layers(ModelConfig& config, const JsonView& object, const NameTable& table, std::int64_t layers,
                std::span<const LayerBlock> of_layer, const char* epsilon_key) {
  ReadKeys(object).key({"num_hidden_layers"}, layers);
  require(config.layer_norm_epsilon > 0, object.file(), ": '", epsilon_key, "': want a number above 0, got ",
          config.layer_norm_epsilon);
  constexpr std::int64_t most_layers = 1 << 20;
  require(layers >= 1 && layers <= most_layers, object.file(), ": 'num_hidden_layers': want 1 to ",
          most_layers, ", got ", layers);
  AttentionConfig& attention = config.attention;
  if (object.has_null("num_key_value_heads")) attention.num_key_value_heads = from_others;
  if (attention.num_key_value_heads == from_others)
    attention.num_key_value_heads = attention.num_attention_heads;
  set_head_dim(config, object);
  std::vector<LayerSlot> slots;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    for (const LayerBlock& block : of_layer) {
      config.blocks.push_back(block.kind);
      slots.push_back({layer, block.slot});
    }
  config.names = {table, std::move(slots)};
}

void want_silu(const JsonView& object) {
  const auto activation = object.find("hidden_act");
  if (!activation) return;
  if (const std::string_view name = activation->string(); name != "silu" && name != "swish")
    activation->refuse("\"silu\"");
}

void warn_of_dropout(const JsonView& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto value = object.find(key); value && value->number() != 0)
      log_warning(object.file(), ": '", key, "' is ", value->number(),
                  " and has no effect: nothing is dropped in models here");
}

void set_attention(ModelConfig& config, const AttentionConfig& attention,
                   const std::function<bool(std::int64_t)>& has) {
  const std::int64_t layers = config.names.layers(config.num_layers());
  std::vector<std::int64_t> having;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if (has(layer)) having.push_back(layer);
  if (std::ssize(having) == layers) {
    config.attention = attention;
    return;
  }
  BlockConfig own = config.common();
  own.attention = attention;
  for (const std::int64_t layer : having)
    config.own_configs.insert_or_assign(attention_block_of(config, layer), own);
}

void set_windows(ModelConfig& config, std::int64_t window, const std::function<bool(std::int64_t)>& slides) {
  AttentionConfig with_window = config.attention;
  with_window.window = window;
  set_attention(config, with_window, slides);
}

const AttentionConfig& attention_of(const ModelConfig& config, std::int64_t layer) {
  return config.block(attention_block_of(config, layer)).attention;
}

bool slides(const ModelConfig& config, std::int64_t layer) { return attention_of(config, layer).window > 0; }

std::int64_t window_of(const ModelConfig& config) {
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    if (slides(config, layer)) return attention_of(config, layer).window;
  return 0;
}

Json layer_types(const ModelConfig& config) {
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    types.push_back(slides(config, layer) ? sliding : full);
  return types;
}

std::vector<bool> read_layer_types(const JsonView& object, std::int64_t layers, std::int64_t window) {
  std::vector<bool> read;
  const auto types = object.find("layer_types");
  if (!types) return read;
  for (const JsonView& type : types->elements()) {
    const std::string_view word = type.string();
    if (word != sliding && word != full) type.refuse(cat('"', full, "\" or \"", sliding, '"'));
    if (word == sliding && window == 0)
      type.refuse(cat('"', full, "\", because no sliding_window is in use"));
    read.push_back(word == sliding);
  }
  if (std::ssize(read) != layers) types->refuse(cat("one type for each of ", counted(layers, "layer")));
  return read;
}

void write_keys(const ModelConfig& config, const char* architecture, std::string_view model_type,
                void (*visit_keys)(ModelConfig&, ConfigKeys&), Json& to, const ActivationKey& activation) {
  to["architectures"] = {architecture};
  to["model_type"] = model_type;
  to["num_hidden_layers"] = config.names.layers(config.num_layers());
  to[activation.key] = activation.name;
  ModelConfig values = config;
  WriteKeys keys(to);
  visit_keys(values, keys);
  keys.finish();
}

double automodel_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& c = setup.config;
  const double h = real(c.hidden_size), layers = real(c.names.layers(c.num_layers())),
               groups = real(c.attention.num_key_value_heads) / real(c.attention.num_attention_heads);
  return real(sequences) * real(length) *
         (layers * h * (12 * h + 12 * h * groups + 18 * real(c.mlp.intermediate_size) + 6 * real(length)) +
          6 * h * real(c.vocab_size));
}

}  // namespace nemocube::decoder_layers

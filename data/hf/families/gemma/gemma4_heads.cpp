#include "data/hf/families/gemma/gemma4_heads.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/per_layer_config.h"

namespace nemocube::gemma4 {
namespace {

Heads heads_of(const AttentionConfig& attention) {
  return {attention.head_dim, attention.num_key_value_heads};
}
void visit(Heads& heads, ConfigKeys& keys) {
  keys.key({"head_dim"}, heads.head_dim);
  keys.key({"num_key_value_heads"}, heads.num_key_value_heads);
}

/// The spelling of published files.
HeadsOfTypes read_global_heads(const Heads& common, const JsonView& object, bool keys_are_values) {
  Heads global = common;
  global.head_dim = 512;
  require(!object.has_null("global_head_dim"), object.file(),
          ": 'global_head_dim': want an integer, got null");
  ReadKeys keys(object);
  keys.key({"global_head_dim"}, global.head_dim);
  constexpr const char* key_value_heads = "num_global_key_value_heads";
  if (keys_are_values)
    keys.key({key_value_heads}, global.num_key_value_heads);
  else if (const auto given = object.find(key_value_heads);
           given && given->integer() != common.num_key_value_heads)
    log_warning(object.file(), ": '", key_value_heads, "' is ", given->integer(),
                " and has no effect where attention_k_eq_v is false, in transformers either");
  return {global, common};
}

/// Heads of each layer, where per_layer_config says how they differ.
std::vector<Heads> read_heads_of_layers(const Heads& common, const JsonView& object, std::int64_t layers) {
  std::vector<Heads> heads(static_cast<std::size_t>(layers), common);
  for (const LayerKeys& layer : layer_keys(object, "per_layer_config")) {
    if (layer.number >= layers) layer.keys.refuse(cat("keys of layers 0 to ", layers - 1, " only"));
    for (const auto& [key, value] : layer.keys.value().items()) {
      if (key == "head_dim" || key == "num_key_value_heads") continue;
      if (differs(key, value, object.value()) && !(key == "skip" && value.empty()))
        layer.keys.member(key).refuse("it absent: layers differ in head_dim and num_key_value_heads alone");
    }
    ReadKeys keys(layer.keys);
    visit(heads[static_cast<std::size_t>(layer.number)], keys);
  }
  return heads;
}

/// The spelling of transformers 5.23 and later.
HeadsOfTypes read_heads_by_layer(const Heads& common, const JsonView& object, const LayerTypes& types) {
  const std::vector<Heads> heads = read_heads_of_layers(common, object, std::ssize(types));
  HeadsOfTypes of_types{heads.back(), common};
  if (const auto first = std::ranges::find(types, true); first != types.end())
    of_types.sliding = heads[static_cast<std::size_t>(first - types.begin())];
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const Heads& want = types[layer] ? of_types.sliding : of_types.full;
    require(heads[layer] == want, object.file(), ": 'per_layer_config': want head_dim ", want.head_dim,
            " and num_key_value_heads ", want.num_key_value_heads, " in each layer of ",
            types[layer] ? sliding : full, ", got ", heads[layer].head_dim, " and ",
            heads[layer].num_key_value_heads, " in layer ", layer);
  }
  return of_types;
}

}  // namespace

void set_heads(AttentionConfig& attention, const Heads& heads) {
  attention.head_dim = heads.head_dim;
  attention.num_key_value_heads = heads.num_key_value_heads;
}

HeadsOfTypes read_heads(const ModelConfig& config, const JsonView& object, const LayerTypes& types,
                        bool keys_are_values) {
  const Heads common = heads_of(config.attention);
  constexpr const char* by_layer = "per_layer_config";
  if (!object.has(by_layer) && !object.has_null(by_layer))
    return read_global_heads(common, object, keys_are_values);
  HeadsOfTypes heads = read_heads_by_layer(common, object, types);
  // transformers passes over the other spelling.
  Heads global = heads.full;
  ReadKeys keys(object);
  keys.key({"global_head_dim"}, global.head_dim);
  if (keys_are_values) keys.key({"num_global_key_value_heads"}, global.num_key_value_heads);
  require(global == heads.full, object.file(), ": 'per_layer_config' and '",
          global.head_dim != heads.full.head_dim ? "global_head_dim" : "num_global_key_value_heads",
          "' differ about the layers of ", full, "; want one of them");
  return heads;
}

Json per_layer_heads(const ModelConfig& config) {
  Json layers = Json::object();
  const std::int64_t last = layers_of(config) - 1;  // sees all keys
  Heads own = heads_of(decoder_layers::attention_of(config, last)), common = heads_of(config.attention);
  if (own == common) return layers;
  Json keys = Json::object();
  if (own.head_dim != common.head_dim) keys["head_dim"] = own.head_dim;
  if (own.num_key_value_heads != common.num_key_value_heads)
    keys["num_key_value_heads"] = own.num_key_value_heads;
  const std::size_t digits = std::to_string(last).size();
  for (std::int64_t layer = 0; layer <= last; ++layer) {
    if (decoder_layers::slides(config, layer)) continue;
    std::string number = std::to_string(layer);
    number.insert(0, digits - number.size(), '0');
    layers[number] = keys;
  }
  return layers;
}

}  // namespace nemocube::gemma4

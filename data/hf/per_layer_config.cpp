#include "data/hf/per_layer_config.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "data/hf/config_keys.h"
#include "data/hf/hf_config_refused.h"

namespace nemocube {
namespace {

std::int64_t layer_number(const std::string& key, const JsonView& place) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  if (error != std::errc() || end != key.data() + key.size() || number < 0)
    fail(place.file(), ": '", place.place(), "': want the number of a block as key, got ", brief(Json(key)));
  return number;
}

}  // namespace

std::vector<LayerKeys> layer_keys(const JsonView& object, const char* key) {
  std::vector<LayerKeys> layers;
  const auto add = [&](std::int64_t number, const JsonView& layer) {
    if (layer.value().is_null()) return;
    if (!layer.value().is_object()) layer.refuse("an object");
    layers.push_back({number, layer});
  };
  const auto all = find_filled(object, key);
  if (!all) return layers;
  if (all->value().is_object()) {
    for (const auto& item : all->value().items())
      add(layer_number(item.key(), *all), all->member(item.key()));
    return layers;
  }
  std::int64_t number = 0;
  for (const JsonView& layer : all->elements()) add(number++, layer);
  return layers;
}

namespace {

std::string of_whole(const std::string& key, const JsonView& object) {
  const auto whole = object.find(key);
  return cat(whole ? brief(whole->value()) : "none", " as for the whole model");
}

void check_key(const std::string& key, const JsonView& value, const JsonView& object) {
  const Json& given = value.value();
  if (!differs(key, given, object.value()) || (key == "skip" && given.is_array() && given.empty())) return;
  if (!is_block_key(key))
    value.refuse(cat(of_whole(key, object), ", since blocks that differ in this key are not supported"));
  if (given.is_null() && !is_nullable_block_key(key)) value.refuse("a value");
}

/// The common config with the keys of the layer.
BlockConfig with_keys_of(const JsonView& layer, const JsonView& object, const BlockConfig& common) {
  for (const auto& item : layer.value().items()) check_key(item.key(), layer.member(item.key()), object);
  BlockConfig own = common;
  ReadKeys keys(layer);
  own.visit(keys);
  return own;
}

void refuse_mtp_differences(const JsonView& object) {
  for (const LayerKeys& layer : layer_keys(object, "mtp_per_layer_config"))
    if (const auto key = first_difference(layer.keys.value(), object.value()))
      layer.keys.member(*key).refuse(
          cat(of_whole(*key, object),
              ", since blocks of multi-token prediction with other sizes are not supported"));
}

}  // namespace

void read_per_layer_config(ModelConfig& config, const JsonView& object) {
  for (const auto& [number, keys] : layer_keys(object, "per_layer_config")) {
    const BlockConfig own = with_keys_of(keys, object, config.common());
    if (own == config.common()) continue;
    if (number >= config.num_layers())
      keys.refuse(cat("keys of blocks 0 to ", config.num_layers() - 1, " only"));
    if (!config.own_configs.emplace(number, own).second) keys.refuse("the keys of a block in one place");
  }
  refuse_mtp_differences(object);
}

void write_per_layer_config(const ModelConfig& config, Json& to) {
  if (config.own_configs.empty()) return;
  // With as many digits for each block, keys that readers sort stay in order.
  const std::size_t digits = std::to_string(config.own_configs.rbegin()->first).size();
  Json layers = Json::object();
  for (const auto& [number, own] : config.own_configs) {
    std::string key = std::to_string(number);
    key.insert(0, digits - key.size(), '0');
    layers[key] = differing_block_keys(config.common(), own);
  }
  to["per_layer_config"] = std::move(layers);
}

}  // namespace nemocube

#include "data/hf/hf_config_refused.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/quote.h"
#include "data/hf/language_part.h"
#include "data/hf/quantization_config.h"

namespace nemocube {

std::optional<JsonView> find_filled(const JsonView& object, const char* key) {
  auto member = object.find(key);
  if (member && member->value().is_structured() && member->value().empty()) return std::nullopt;
  return member;
}

std::optional<std::string> first_difference(const Json& part, const Json& config) {
  for (const auto& [key, value] : part.items())
    if (differs(key, value, config)) return key;
  return std::nullopt;
}

bool differs(const std::string& key, const Json& value, const Json& config) {
  const auto same = config.find(key);
  return same == config.end() ? !value.is_null() : *same != value;
}

namespace {

bool is_puzzle(std::string_view name) {
  return name.find("Puzzle") != name.npos || name.find("puzzle") != name.npos;
}

void refuse_puzzle(const JsonView& config) {
  const auto refuse = [&](std::string_view sign) {
    fail(config.file(), ": NemotronHPuzzle models (seen by ", quote(sign),
         ") are not supported; want a nemotron_h model, whose per_layer_config says how blocks differ");
  };
  if (const auto names = config.find("architectures"))
    for (const JsonView& name : names->elements())
      if (is_puzzle(name.string())) refuse(name.string());
  if (const auto type = config.find("model_type"); type && is_puzzle(type->string())) refuse(type->string());
  // Nemotron-NAS models (DeciLMForCausalLM), which are derived from Llama, have this key as well.
  if (find_filled(config, "block_configs") && is_nemotron_h(config)) refuse("block_configs");
}

/// Config of a model of another type: names its type and its classes.
void refuse_other_type(const JsonView& config) {
  const auto type = config.find("model_type");
  std::string classes;
  if (const auto names = config.find("architectures"))
    for (const JsonView& name : names->elements()) classes += cat(classes.empty() ? "" : ", ", name.string());
  fail(config.file(), ": 'model_type': want \"nemotron_h\", got ", type ? brief(type->value()) : "none",
       classes.empty() ? std::string() : cat(" (architectures: ", excerpt(classes), ")"),
       "; models of other architectures are not supported");
}

void refuse_parts(const JsonView& config) {
  for (const char* key :
       {"llm_config", "text_config", "language_config", "vision_config", "sound_config", "audio_config"}) {
    const auto part = find_filled(config, key);
    if (!part) continue;
    if (!part->value().is_object()) part->refuse("an object");
    if (!first_difference(part->value(), config.value())) continue;
    const auto type = config.find("model_type");
    fail(config.file(), ": '", key, "': this is a model of several parts",
         type ? cat(" (model_type ", brief(type->value()), ")") : std::string(),
         ", which is not supported; want a language model alone, or a part llm_config, text_config or "
         "language_config "
         "with the model_type \"nemotron_h\" in a model of another type");
  }
}

}  // namespace

void refuse_other_models(const JsonView& config) {
  refuse_puzzle(config);
  refuse_parts(config);
  declared_quantization(config);  // throws for what is not read
  if (!is_nemotron_h(config)) refuse_other_type(config);
}

}  // namespace nemocube

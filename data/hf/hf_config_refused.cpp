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

/// Config of a model of another type: names its type and its classes.
void refuse_other_type(const JsonView& config) {
  const auto type = config.find("model_type");
  std::string classes;
  if (const auto names = config.find("architectures"))
    for (const JsonView& name : names->elements()) classes += cat(classes.empty() ? "" : ", ", name.string());
  fail(config.file(), ": 'model_type': want ", model_types(), ", got ", type ? brief(type->value()) : "none",
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
         "with the model_type ",
         model_types(), " in a model of another type");
  }
}

}  // namespace

const Family& family_of_language_model(const JsonView& config) {
  for (const Family* family : families()) family->refuse_relatives(config);
  refuse_parts(config);
  declared_quantization(config);  // throws for what is not read
  const Family* const family = find_family(config);
  if (!family) refuse_other_type(config);
  return *family;
}

}  // namespace nemocube

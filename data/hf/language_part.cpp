#include "data/hf/language_part.h"

#include <nlohmann/json.hpp>

namespace nemocube {
namespace {
bool is_language_model(std::string_view architecture) {
  return architecture == "NemotronHModel" || architecture.starts_with("NemotronHFor");
}
}  // namespace

bool is_nemotron_h(const JsonView& config) {
  if (const auto type = config.find("model_type")) return type->string() == "nemotron_h";
  const auto names = config.find("architectures");
  if (names)
    for (const JsonView& name : names->elements())
      if (is_language_model(name.string())) return true;
  return false;
}

std::optional<JsonView> language_part(const JsonView& config) {
  if (!config.value().is_object() || is_nemotron_h(config)) return std::nullopt;
  for (const char* key : {"llm_config", "text_config", "language_config"}) {
    const auto part = config.find(key);
    if (part && part->value().is_object() && is_nemotron_h(*part)) return part;
  }
  return std::nullopt;
}

}  // namespace nemocube

#pragma once
#include <optional>
#include <string_view>

#include "data/json/json.h"

/// Models of several parts (Nemotron Nano Omni, Nano VL): the config.json of the whole has that of its NemotronH language model
/// under `llm_config`, `text_config` or `language_config`, and the names of its tensors begin with "language_model.".
namespace nemocube {

inline constexpr std::string_view language_prefix = "language_model.";

/// The language model's config in that of a model of several parts; nothing where config.json is no such model, or the part
/// is no NemotronH model by its model_type or architecture.
std::optional<JsonView> language_part(const JsonView& config);

/// Whether the config says by model_type or architecture that it is a NemotronH language model.
bool is_nemotron_h(const JsonView& config);

}  // namespace nemocube

#pragma once
#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/family.h"

namespace nemocube {

/// `sliding_window`, of all layers: null is none, and an absent key is `otherwise`. pre: the config has its
/// layers
void read_mistral_window(ModelConfig& config, const JsonView& object, std::int64_t otherwise);
void write_mistral_window(const ModelConfig& config, Json& to);

/// Mistral3ForConditionalGeneration.
inline constexpr std::array mistral3_wrapper{Wrapper{.model_type = "mistral3", .tied_by_default = true}};

}  // namespace nemocube

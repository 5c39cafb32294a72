#pragma once
#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "model/config.h"

namespace nemocube {

/// The sliding windows of Qwen 2 and 3: `sliding_window` counts where `use_sliding_window` is true. Then the
/// layers slide that `layer_types` says, or without that key those from `max_window_layers` on. pre: the
/// config has its layers
void read_qwen_windows(ModelConfig& config, const JsonView& object);
void write_qwen_windows(const ModelConfig& config, Json& to);

}  // namespace nemocube

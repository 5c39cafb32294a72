#include "data/hf/families/qwen/windows.h"

#include "core/error.h"
#include "data/hf/families/decoder_layers.h"

namespace nemocube {

void read_qwen_windows(ModelConfig& config, const JsonView& object) {
  bool use = false;
  std::int64_t window = 4096, first = 28;
  ReadKeys keys(object);
  keys.key({"use_sliding_window"}, use);
  keys.key({"sliding_window"}, window);
  keys.key({"max_window_layers"}, first);
  if (object.has_null("sliding_window")) use = false;
  require(!use || window >= 1, object.file(), ": 'sliding_window': want at least 1, got ", window);
  const std::int64_t layers = config.names.layers(config.num_layers());
  const std::vector<bool> types = decoder_layers::read_layer_types(object, layers, use ? window : 0);
  if (!use) return;
  decoder_layers::set_windows(config, window, [&](std::int64_t layer) {
    return types.empty() ? layer >= first : types[static_cast<std::size_t>(layer)];
  });
}

void write_qwen_windows(const ModelConfig& config, Json& to) {
  const std::int64_t window = decoder_layers::window_of(config);
  to["use_sliding_window"] = window > 0;
  to["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  to["layer_types"] = decoder_layers::layer_types(config);
}

}  // namespace nemocube

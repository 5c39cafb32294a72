#include "data/hf/families/mistral/windows.h"

#include "core/error.h"
#include "data/hf/families/decoder_layers.h"

namespace nemocube {

void read_mistral_window(ModelConfig& config, const JsonView& object, std::int64_t otherwise) {
  std::int64_t window = object.has_null("sliding_window") ? 0 : otherwise;
  if (const auto given = object.find("sliding_window")) {
    window = given->integer();
    if (window < 1) given->refuse("at least 1, or null for no window");
  }
  if (window > 0) decoder_layers::set_windows(config, window, [](std::int64_t) { return true; });
}

void write_mistral_window(const ModelConfig& config, Json& to) {
  const std::int64_t window = decoder_layers::window_of(config);
  to["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

}  // namespace nemocube

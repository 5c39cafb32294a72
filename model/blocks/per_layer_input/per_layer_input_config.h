#pragma once
#include <cstdint>

namespace nemocube {

/// The size of a mixer that adds rows made from the tokens themselves (docs/gemma4.md).
struct PerLayerInputConfig {
  std::int64_t size = 0;  ///< P, numbers of a token for each layer: hidden_size_per_layer_input

  bool operator==(const PerLayerInputConfig&) const = default;
};

}  // namespace nemocube

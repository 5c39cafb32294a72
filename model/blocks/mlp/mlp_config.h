#pragma once
#include <cstdint>
#include <optional>

#include "ops/gated_activation/gated_activation.h"

namespace nemocube {

class ConfigKeys;

/// The sizes of a dense MLP.
struct MlpConfig {
  std::int64_t intermediate_size = 21504;
  bool bias = false;
  std::optional<GateActivation> gate;  ///< of a gated MLP; none: a squared ReLU without gate

  /// The gate has keys that families spell in their own ways.
  void visit(ConfigKeys& keys);
  bool operator==(const MlpConfig&) const = default;
};

}  // namespace nemocube

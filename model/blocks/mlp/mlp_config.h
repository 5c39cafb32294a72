#pragma once
#include <cstdint>
#include <optional>

#include "ops/gated_activation/gated_activation.h"

namespace nemocube {

class ConfigKeys;

/// phi of an MLP without a gate.
enum class MlpActivation : std::uint8_t {
  relu2,      ///< max(x, 0)^2
  gelu_tanh,  ///< x/2 (1 + tanh(c (x + 0.044715 x^3))) with c = sqrt(2/pi)
};

/// The sizes of a dense MLP.
struct MlpConfig {
  std::int64_t intermediate_size = 21504;
  bool bias = false;
  std::optional<GateActivation> gate;               ///< of a gated MLP; none: an MLP without a gate
  MlpActivation activation = MlpActivation::relu2;  ///< of an MLP without a gate
  double gate_multiplier = 1;                       ///< of the gate, before phi
  double output_multiplier = 1;                     ///< of what down_proj returns

  /// The gate has keys that families spell in their own ways.
  void visit(ConfigKeys& keys);
  bool operator==(const MlpConfig&) const = default;
};

}  // namespace nemocube

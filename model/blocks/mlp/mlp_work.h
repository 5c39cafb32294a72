#pragma once
#include <optional>

#include "model/blocks/block_type.h"
#include "ops/gated_activation/gated_activation.h"

namespace nemocube {

/// The work of an MLP with this gate, or of a squared-ReLU one, on rows [rows, width] with `inner` hidden
/// channels on the rank.
void add_mlp_work(BlockWork& work, const std::optional<GateActivation>& gate, double rows, double width,
                  double inner);
/// The work of the activation of so many numbers, a gated one or the squared ReLU.
void add_activation_work(BlockWork& work, const std::optional<GateActivation>& gate, double numbers);

}  // namespace nemocube

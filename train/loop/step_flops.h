#pragma once
#include <span>

#include "data/loader/batch.h"
#include "model/config.h"

namespace nemocube {

/// Floating-point operations that one training step needs: three times the forward pass (model/flops.h) over
/// the tokens of every sequence at its own length; padding costs nothing, the head only its labelled tokens,
/// and recomputation is not counted.
double step_flops(const NemotronHConfig& config, std::span<const TokenBatch> microbatches);

}  // namespace nemocube

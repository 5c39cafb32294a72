#pragma once
#include <span>

#include "data/loader/batch.h"
#include "model/config.h"

namespace nemocube {

/// Floating-point operations that one training step needs: forward and backward pass
/// (training_flops_per_token()), each sequence at its own length. Padding and recomputation are not counted,
/// and the head counts only for labelled tokens.
double step_flops(const ModelSetup& setup, std::span<const TokenBatch> microbatches);

}  // namespace nemocube

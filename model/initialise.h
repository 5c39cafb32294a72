#pragma once
#include <cstdint>

#include "model/nemotron_h.h"

namespace nemocube {

/// Fills every parameter as a fresh Hugging Face NemotronHForCausalLM would be drawn (its laws, not its
/// bits):
///     matrices, embeddings, lm_head   N(0, initializer_range)
///     Mamba out_proj                  U(-1, 1) / sqrt(fan_in), divided by sqrt(number of blocks) when
///                                     rescale_prenorm_residual
///     conv1d                          U(-1, 1) / sqrt(conv_kernel), weight and bias
///     A_log                           log(1 .. heads);   D, norms: 1;   other biases, correction bias: 0
///     dt_bias                         inverse softplus of exp(U(ln time_step_min, ln time_step_max)), at
///     least
///                                     time_step_floor
/// Element i of a tensor depends on (seed, name, i) alone: any sharding draws its slice of the same model.
/// Source: Hugging Face NemotronHPreTrainedModel._init_weights.
void initialise(NemotronH& model, std::uint64_t seed);

}  // namespace nemocube

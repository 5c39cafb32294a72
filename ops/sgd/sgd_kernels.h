#pragma once
#include "ops/sgd/sgd.h"

/// Kernels behind ops/sgd/sgd.h: arguments checked by the caller.
namespace nemocube::cpu {

void sgd_step(const Tensor& master, const Tensor& momentum_buffer, const Tensor& grad,
              const Tensor& model_copy, const SgdOptions& options, const UpdateGate& gate);

}  // namespace nemocube::cpu

#pragma once
#include "core/kernel.h"
#include "ops/sgd/sgd.h"

/// Kernels behind ops/sgd/sgd.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
void sgd_step(const Tensor& master, const Tensor& momentum_buffer, const Tensor& grad,
              const Tensor& model_copy, const SgdOptions& options, const UpdateGate& gate);

}  // namespace cpu

inline const Kernel<cpu::sgd_step> sgd_step_kernel("sgd/step");

}  // namespace nemocube

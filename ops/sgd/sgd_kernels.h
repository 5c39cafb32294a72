#pragma once
#include "core/kernel.h"
#include "ops/sgd/sgd.h"

/// Kernels behind ops/sgd/sgd.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
void sgd_step(std::span<const SgdRange> ranges, const SgdOptions& options, const Tensor& schedule,
              const UpdateGate& gate);

}  // namespace cpu

inline const Kernel<cpu::sgd_step> sgd_step_kernel("sgd/step");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"
#include "ops/row_norm_kernels.h"

/// Kernels behind ops/rmsnorm/rmsnorm.h: arguments checked by the caller. inv is inv_rms; there is no mean
/// and no bias.
namespace nemocube {

namespace cpu {
void rmsnorm_forward(const NormForward& operands);
void rmsnorm_backward(const NormBackward& operands);
}  // namespace cpu

inline const Kernel<cpu::rmsnorm_forward> rmsnorm_forward("rmsnorm/forward");
inline const Kernel<cpu::rmsnorm_backward> rmsnorm_backward("rmsnorm/backward");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"
#include "ops/row_norm_kernels.h"

/// Kernels behind ops/layernorm/layernorm.h: arguments checked by the caller. inv is inv_std; there is no
/// offset.
namespace nemocube {

namespace cpu {
void layernorm_forward(const NormForward& operands);
void layernorm_backward(const NormBackward& operands);
}  // namespace cpu

inline const Kernel<cpu::layernorm_forward> layernorm_forward("layernorm/forward");
inline const Kernel<cpu::layernorm_backward> layernorm_backward("layernorm/backward");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"

/// Kernels behind ops/grouped_linear/grouped_linear.h: shapes and dtypes checked by the caller. offsets
/// [E + 1] i64. Those of the CPU throw Error for offsets that do not ascend from 0 to the number of rows.
namespace nemocube {

namespace cpu {
void grouped_linear_forward(const Output& y, const Tensor& x, const Tensor& offsets, const Tensor& weight);
void grouped_linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets,
                                   const Tensor& weight);
void grouped_linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets,
                                    const Tensor& x);
}  // namespace cpu

inline const Kernel<cpu::grouped_linear_forward> grouped_linear_forward_kernel("grouped_linear/forward");
inline const Kernel<cpu::grouped_linear_backward_input> grouped_linear_backward_input_kernel(
    "grouped_linear/backward_input");
inline const Kernel<cpu::grouped_linear_backward_weight> grouped_linear_backward_weight_kernel(
    "grouped_linear/backward_weight");

}  // namespace nemocube

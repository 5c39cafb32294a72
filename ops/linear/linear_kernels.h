#pragma once
#include "core/kernel.h"

/// Kernels behind ops/linear/linear.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y[r, :] = bias. y is contiguous and not empty, of the dtype of bias.
void fill_rows(const Tensor& y, const Tensor& bias);
}  // namespace cpu

inline const Kernel<cpu::fill_rows> fill_rows_kernel("linear/fill_rows");

}  // namespace nemocube

#pragma once
#include "core/kernel.h"

/// Kernels behind ops/scale_by/scale_by.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y = x s. y may be x; s is of the dtype of x or of its arithmetic.
void scale_by(const Tensor& y, const Tensor& x, const Tensor& s);
}  // namespace cpu

inline const Kernel<cpu::scale_by> scale_by_kernel("scale_by/scale");

}  // namespace nemocube

#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y = max(x, 0)^2, the activation of the MLP and of the experts.
///
/// shapes     x, y alike, any
/// layout     rows of x may be strided; y is contiguous
/// dtypes     f32, f64 or bf16; bf16 is computed in f32 and rounded once
/// gradient   dx = 2 max(x, 0) dy; keeps x alone. NaN in x gives NaN in y and dx
/// errors     x is not of a floating dtype
/// source     "Primer: searching for efficient transformers for language modeling" (So et al., 2021)
Var relu2(Context& ctx, const Var& x);

namespace cpu {
void relu2_forward(const Tensor& y, const Tensor& x);
/// dx may be dy.
void relu2_backward(const Tensor& dx, const Tensor& dy, const Tensor& x);
}  // namespace cpu

}  // namespace nemocube

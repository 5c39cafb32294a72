#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y = max(x, 0)^2, the activation of the MLP and of the experts.
///
/// shapes     x, y alike, any
/// layout     rows of x may be strided; y is contiguous
/// dtypes     f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once
/// devices    CPU, CUDA
/// memory     y overwrites x when no other tensor shares the storage of x: relu2(ctx, linear(..)) allocates
///            nothing
/// gradient   dx = 2 sqrt(y) dy. Keeps only y, which the projection that follows keeps anyway. sqrt(y) is
///            exactly max(x, 0), although the square and the root are rounded to the dtype of x, as long as
///            x^2 neither overflows nor underflows. After an overflow dx is infinite (NaN where dy is 0);
///            after an underflow the error of dx is less than 1e-18 dy. NaN in x gives NaN in y and dx
/// errors     x is not of a floating dtype
/// source     "Primer: searching for efficient transformers for language modeling" (So et al., 2021); the
///            square root: S. Boldo, "Stupid is as stupid does" (2015)
Var relu2(Context& ctx, Var x);

}  // namespace nemocube

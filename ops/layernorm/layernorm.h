#pragma once
#include "ops/residual_norm.h"

namespace nemocube {

/// mean[r] = mean_c x[r, c],   inv_std[r] = 1 / sqrt(mean_c (x[r, c] - mean[r])^2 + eps)
/// n[r, c] = (x[r, c] - mean[r]) inv_std[r],   y[r, c] = n[r, c] w[c] + b[c]
///
/// shapes     x, y [..., cols], cols >= 1, any number of rows; w, b [cols]; b may be undefined, and counts as
///            zero
/// layout     rows of x may be strided; w, b and y are contiguous
/// devices    CPU, CUDA
/// dtypes     x, w, b, y alike: f32, f64 (CPU) or bf16. bf16: everything in f32 and y rounded once
/// numerics   two passes over the row on both devices: the mean first, then the sum of squared differences
///            from the mean. A mean that is large against the spread costs y the digits of x - mean and no
///            others
/// gradient   with u = w dy:  dx = inv_std (u - mean_c(u) - n mean_c(u n)),  dw = sum over rows of dy n,
///            db = sum over rows of dy (f32, in the fixed segments of ops/reduce.h). Keeps x, w, mean and
///            inv_std; y is computed again for who needs y in backward (GradNode::again)
/// errors     shape or dtype of w or b, no columns, eps < 0
/// source     "Layer Normalization" (Ba, Kiros and Hinton, 2016)
Var layernorm(Context& ctx, const Var& x, const Var& weight, const Var& bias, double eps);

/// sum = x + residual (rounded to the dtype of x), normed = layernorm(sum, weight, bias, eps), in one pass
/// over memory.
///
/// x and residual have the same shape and dtype; both results are contiguous. Gradient of x and of residual
/// alike: d_sum (the gradient of `sum`, if there is one) + the norm's backward of d_normed, rounded once.
/// Keeps sum, w, mean and inv_std; normed is computed again.
ResidualNorm residual_layernorm(Context& ctx, const Var& x, const Var& residual, const Var& weight,
                                const Var& bias, double eps);

}  // namespace nemocube

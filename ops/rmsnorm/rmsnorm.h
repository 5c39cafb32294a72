#pragma once
#include "ops/residual_norm.h"

namespace nemocube {

/// inv_rms[r] = 1 / sqrt(mean_c x[r, c]^2 + eps),   n[r, c] = x[r, c] inv_rms[r],   y[r, c] = n[r, c]
///                                                                                  (offset + w[c])
///
/// Without a weight, an undefined Var, y = n (Gemma 4's norms of values and of what its router reads).
///
/// shapes     x, y [..., cols], cols >= 1, any number of rows; w [cols]
/// layout     rows of x may be strided; w and y are contiguous
/// devices    CPU, CUDA: both variants
/// dtypes     x, w, y alike: f32, f64 (CPU) or bf16. bf16: everything in f32 and y rounded once, as in
///            Hugging Face 5.23 and in fused training kernels (older Hugging Face releases round n before the
///            weight). offset + w is rounded to f32 (f64), never to bf16; an offset of 0 is not added
/// offset     0: the weight is the scale. 1: the scale is 1 + the weight (Gemma 3, Qwen 3.5)
/// gradient   with u = (offset + w) dy, without a weight u = dy:  dx = inv_rms (u - n mean_c(u n)),
///            dw = sum over rows of dy n (f32, in the fixed segments of ops/reduce.h). Keeps x, w and
///            inv_rms; an operation that needs y in backward computes y again (GradNode::again)
/// errors     shape of w, dtype of w, no columns, eps < 0, an offset that is not finite, or not 0 without w
/// source     "Root Mean Square Layer Normalization" (Zhang and Sennrich, 2019)
Var rmsnorm(Context& ctx, const Var& x, const Var& weight, double eps, double offset = 0);

/// sum = x + residual (rounded to the dtype of x), normed = rmsnorm(sum, weight, eps, offset).
///
/// This is the step between two blocks, in one pass over memory. x and residual have the same
/// shape and dtype; both results are contiguous. Gradient of x and of residual alike: d_sum (the
/// gradient of `sum`, if there is one) + the norm's backward of d_normed, rounded once. Keeps sum,
/// w and inv_rms; normed is computed again. Variants of "rmsnorm": "fused"; "separate" composes
/// add and rmsnorm, rounding the gradient twice.
ResidualNorm residual_rmsnorm(Context& ctx, const Var& x, const Var& residual, const Var& weight, double eps,
                              double offset = 0);

}  // namespace nemocube

#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y_r = x_r / max(||x_r||, eps) for every row x_r, with ||x|| = sqrt(sum_c x_c^2): the weight of a head
/// whose logits are products with unit vectors.
///
/// shapes     x, y [..., n]
/// layout     rows of x may be strided; y is contiguous
/// dtypes     f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once. Sums of squares overflow in
///            f32 where ||x|| is above 1.8e19
/// devices    CPU, CUDA
/// gradient   dx = (dy - y (y . dy)) / ||x||        where ||x|| >= eps
///            dx = dy / eps                         else: the divisor is a constant there
///            Keeps x alone, and forms its norms again. bf16 leaves get f32 sums, unrounded
/// errors     Error unless x is of a floating dtype and has a dimension, and eps > 0
/// source     torch.nn.functional.normalize; NormHead of Baichuan 2 ("Baichuan 2: open large-scale language
///            models", Yang et al., 2023)
Var l2_normalize(Context& ctx, const Var& x, double eps = 1e-12);

}  // namespace nemocube

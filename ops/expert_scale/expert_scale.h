#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y[t, j] = w[t, j] s[e[t, j]]: each expert has a factor of the weights by which tokens take its results.
/// The factors are trained (router.per_expert_scale of Gemma 4).
///
/// shapes     w, e, y [T, k] (Routing::weights and RouterChoice::experts); s [E], E >= 1; T, k >= 0
/// layout     rows of w and e may be strided; s and y are contiguous
/// dtypes     w and y f32 (f64); e i32; s f32 or bf16 (f64), taken as f32; products in f32 (f64)
/// range      0 <= e < E, as route() chooses; not checked
/// devices    CPU, CUDA
/// memory     y overwrites w when no gradient of s is recorded and no other tensor shares the storage of w
/// gradient   dw[t, j] = dy[t, j] s[e[t, j]],   ds[i] = sum over e[t, j] = i of dy[t, j] w[t, j], by tokens
///            in the fixed segments of ops/reduce.h. Keeps e, s, and w where s wants a gradient. dw
///            overwrites dy when nobody else holds it
/// errors     Error when w, e or s is undefined, w is not [T, k] f32 or f64, e is not i32 of the shape of w,
///            or s is not [E] of a dtype whose arithmetic is that of w
/// source     Gemma 4 (Hugging Face Transformers)
Var expert_scale(Context& ctx, Var weights, const Tensor& experts, const Var& scale);

}  // namespace nemocube

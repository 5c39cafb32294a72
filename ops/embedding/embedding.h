#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y[t, :] = weight[ids[t], :]
///
/// shapes     ids [T], weight [V, h] -> y [T, h]; T, V, h >= 0
/// layout     the last dimension of weight contiguous, row stride free; y contiguous
/// dtypes     ids i64; weight f32, f64 or bf16; y as weight (an exact copy of the rows)
/// backward   dweight[v, :] = sum of dy[t, :] over the t with ids[t] = v, in ascending t, added in f32 (f64
///            for f64). Every element of a leaf's gradient is written, also the rows that no id names. `ids`
///            is kept, not copied, and must not change before the backward pass.
/// errors     Error naming the id, its position and V when an id is outside [0, V); wrong rank or dtype
/// repeat     same bits for any number of threads
Var embedding(Context& ctx, const Tensor& ids, const Var& weight);

}  // namespace nemocube

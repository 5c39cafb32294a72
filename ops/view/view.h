#pragma once
#include <span>
#include <vector>

#include "core/autograd.h"

namespace nemocube {

/// Cuts the last dimension of x into views without copies: view i has columns[i] columns. The gradients of
/// the views are written side by side into one buffer, which becomes the gradient of x. Error unless
/// `columns` adds up to the last dimension of x.
std::vector<Var> split_last(Context& ctx, const Var& x, std::span<const std::int64_t> columns);

/// [a, b] side by side: the last dimension of the result has the columns of a, then those of b. Rows and
/// dtypes alike.
Var concat_last(Context& ctx, const Var& a, const Var& b);

/// The same values under another shape (see Tensor::reshape).
Var reshape(Context& ctx, const Var& x, const Shape& shape);

/// a + b, elementwise, shapes and dtypes alike; bf16 is added in f32 and rounded once. da = dy, db = dy.
Var add(Context& ctx, const Var& a, const Var& b);

}  // namespace nemocube

#pragma once
#include <span>

#include "core/autograd.h"
#include "core/shard.h"

namespace nemocube {

/// y = the entries of x in the ranges of dimension 0, one range after another. For a device that computes
/// with a part of a parameter.
///
/// shapes     x [n, ...] -> y [sum of range sizes, ...]
/// dtypes     any float; y as x (exact copies)
/// layout     x contiguous
/// backward   dx in the ranges is dy, elsewhere 0. Where x is a leaf, y is one too: gradients of a parameter
///            are summed in its accumulation dtype, and stay weight work (Tape)
/// errors     std::logic_error unless the ranges ascend, are disjoint and inside of x
Var select_rows(Context& ctx, const Var& x, std::span<const Range> ranges);

}  // namespace nemocube

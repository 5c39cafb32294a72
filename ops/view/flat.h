#pragma once
#include <span>
#include <vector>

#include "core/autograd.h"

namespace nemocube {

/// The elements of several tensors one after another, each tensor by rows: y [n], n the sum of their sizes.
///
/// shapes     any; dtypes and devices alike
/// layout     rows of the tensors may be strided; y is contiguous
/// gradient   each tensor gets its range of dy, without a copy
/// errors     Error where dtypes or devices differ, or there is no tensor
Var pack(Context& ctx, std::span<const Var> tensors);

/// The reverse: tensors of these shapes, which are views of x [n]. The gradient of x is one buffer; ranges
/// whose tensor has no gradient are zeros.
///
/// errors     Error where the shapes do not add up to n
std::vector<Var> unpack(Context& ctx, const Var& x, std::span<const Shape> shapes);

}  // namespace nemocube

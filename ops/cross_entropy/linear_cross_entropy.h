#pragma once
#include <cstdint>

#include "core/autograd.h"

/// The "fused" variant of linear_cross_entropy (see cross_entropy.h). Internal to this folder.
namespace nemocube::detail {

Var fused_linear_cross_entropy(Context& ctx, const Var& x, const Var& weight, const Tensor& labels,
                               double grad_scale, std::int64_t chunk_rows);

}  // namespace nemocube::detail

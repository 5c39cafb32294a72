#pragma once
#include "core/cuda/module.h"
#include "parallel/comm/communicator.h"

namespace nemocube::cuda {

/// out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ... on a CUDA device, or the same with max or min;
/// the values that nemocube::reduce_in_order() forms on the host. parts [n, count] and out, of count
/// elements, are contiguous and of one floating dtype.
inline const Function<void(const Tensor& parts, const Tensor& out, Reduction reduction)> reduce_in_order(
    "comm/reduce_in_order");

}  // namespace nemocube::cuda

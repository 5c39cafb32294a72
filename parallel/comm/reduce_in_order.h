#pragma once
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// out[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + ... for 0 <= i < count, or the same with max
/// or min; precision and NaN as in communicator.h. `out` may be one of the sources.
void reduce_in_order(std::span<const void* const> sources, void* out, std::int64_t count, DType dtype,
                     Reduction reduction);

}  // namespace nemocube

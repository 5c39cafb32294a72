#pragma once
#include "core/autograd.h"
#include "core/cuda/module.h"

/// Kernels behind ops/reduce.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
void sum_segments(const Output& out, const Tensor& partial);
}
namespace cuda {
/// For f32 partial sums. Every sum is made of the sums of 16 interleaved sets of segments, added in order.
inline const Kernel<decltype(cpu::sum_segments)> sum_segments("reduce/sum_segments");
}  // namespace cuda

}  // namespace nemocube

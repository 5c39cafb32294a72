#include "core/cuda/elementwise.cuh"
#include "parallel/comm/nccl/reduce_in_order_kernel.h"

namespace nemocube::cuda {
namespace {

/// The type in which values of T are added, as on the host.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;

template <class T>
__device__ Sum<T> read(const T& value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return value;
}
template <class T>
__device__ T stored(Sum<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(value);
  else
    return value;
}

// A NaN in a stays; b comes last, so that a NaN there is taken.
template <class A>
__device__ A combine(A a, A b, Reduction reduction) {
  if (reduction == Reduction::sum) return a + b;
  const bool first = reduction == Reduction::max ? a > b : a < b;
  return first || a != a ? a : b;
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    reduce_kernel(RowBlocks grid, const T* parts, T* out, int n, Reduction reduction) {
  for_own_pack<1>(grid, [&](std::int64_t, std::int64_t i, std::int64_t) {
    Sum<T> sum = read(parts[i]);
    for (int r = 1; r < n; ++r) sum = combine(sum, read(parts[r * grid.cols + i]), reduction);
    out[i] = stored<T>(sum);
  });
}

void reduce(const Tensor& parts, const Tensor& out, Reduction reduction) {
  const std::int64_t count = out.numel();
  expect(parts.ndim() == 2 && parts.dim(0) > 0 && parts.dim(1) == count && parts.contiguous() &&
             out.contiguous(),
         "reduce_in_order: parts of shape ", parts.shape(), " for ", count, " elements");
  if (count == 0) return;
  visit_float("reduce_in_order", out.dtype(), [&]<class Stored>(TypeTag<Stored>) {
    using T = device_t<Stored>;
    launch_elementwise<1>("reduce in order", reduce_kernel<T>, 1, count, data_of<T>(parts), data_of<T>(out),
                          static_cast<int>(parts.dim(0)), reduction);
  });
}

const Provide provided[] = {{reduce_in_order, reduce}};

}  // namespace
}  // namespace nemocube::cuda

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/reduce_kernels.h"

namespace nemocube::cuda {
namespace {

// A block sums 32 columns. Warp w adds segments w, w + 16, .. of them; the first warp adds the sums of the warps in
// their order. The order of all additions follows from the number of segments alone.
constexpr int columns = 32, sets = 16;

template <class T>
__global__ void __launch_bounds__(columns* sets)
    segments_kernel(T* out, bool add, Rows<float> partial, std::int64_t segments, std::int64_t cols) {
  __shared__ float of_set[sets][columns];
  const int column = threadIdx.x % columns, set = threadIdx.x / columns;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * columns + column;
  float sum = 0;
  if (c < cols)
    for (std::int64_t s = set; s < segments; s += sets) sum += partial.row(s)[c];
  of_set[set][column] = sum;
  __syncthreads();
  if (set > 0 || c >= cols) return;
  for (int i = 1; i < sets; ++i) sum += of_set[i][column];
  out[c] = rounded<T>(add ? to_float(out[c]) + sum : sum);
}

void sum(const Output& out, const Tensor& partial) {
  if (partial.cols() == 0) return;
  visit_storage("sum_segments", out.to.dtype(), [&]<class T>(TypeTag<T>) {
    launch("sum of segments", segments_kernel<T>, blocks_for(partial.cols(), columns), columns * sets,
           data_of<T>(out.to), out.how == Into::add, rows_of<float>(partial), partial.rows(), partial.cols());
  });
}

const Provide provided(sum_segments_kernel, sum);

}  // namespace
}  // namespace nemocube::cuda

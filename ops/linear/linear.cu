#include "core/cuda/elementwise.cuh"
#include "ops/linear/linear_kernels.h"

namespace nemocube::cuda {
namespace {

template <class T, int N>
__global__ void rows_of_bias_kernel(RowBlocks grid, Rows<T> y, const T* bias) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    Pack<T, N>::load(bias + c, count).store(y.row(r) + c, count);
  });
}

template <class T, int N>
void fill_packs(const Tensor& y, const Tensor& bias) {
  launch_elementwise<N>("rows of a bias", rows_of_bias_kernel<T, N>, y.rows(), y.cols(), rows_of<T>(y),
                        data_of<T>(bias));
}

void fill(const Tensor& y, const Tensor& bias) {
  visit_storage("linear", y.dtype(), [&]<class T>(TypeTag<T>) {
    rows_aligned(y, bias) ? fill_packs<T, whole_pack<T>>(y, bias) : fill_packs<T, 1>(y, bias);
  });
}

const Provide provided(fill_rows_kernel, fill);

}  // namespace
}  // namespace nemocube::cuda

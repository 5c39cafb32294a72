#include "core/cuda/elementwise.cuh"
#include "ops/scale_by/scale_by_kernels.h"

namespace nemocube::cuda {
namespace {

// y may be x. One of the two pointers to the factor is null.
template <class T, int N>
__global__ void scale_by_kernel_of(RowBlocks grid, Rows<T> y, Rows<T> x, const T* s, const float* s_f32) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    const Pack<T, N> pack = Pack<T, N>::load(x.row(r) + c, count);
    const float factor = s ? to_float(*s) : *s_f32;
    pack.read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= factor;
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

template <class T, int N>
void scale_packs(const Tensor& y, const Tensor& x, const Tensor& s) {
  const bool alike = s.dtype() == x.dtype();
  const T* const of_x = alike ? data_of<T>(s) : nullptr;
  const float* const wide = alike ? nullptr : data_of<float>(s);
  launch_elementwise<N>("scale_by", scale_by_kernel_of<T, N>, x.rows(), x.cols(), rows_of<T>(y),
                        rows_of<T>(x), of_x, wide);
}

void scale_by(const Tensor& any_y, const Tensor& any_x, const Tensor& s) {
  const bool one_row = all_contiguous(any_y, any_x);
  const Tensor y = as_one_row(any_y, one_row), x = as_one_row(any_x, one_row);
  visit_storage("scale_by", x.dtype(), [&]<class T>(TypeTag<T>) {
    rows_aligned(y, x) ? scale_packs<T, whole_pack<T>>(y, x, s) : scale_packs<T, 1>(y, x, s);
  });
}

const Provide provided[] = {{scale_by_kernel, scale_by}};

}  // namespace
}  // namespace nemocube::cuda

#include "core/cuda/elementwise.cuh"
#include "ops/scale_columns/scale_columns_kernels.h"

namespace nemocube::cuda {
namespace {

struct Parts {
  int count;
  std::int64_t ends[most_column_factors];
  float factors[most_column_factors];
};

// A pack may lie in several parts.
// y may be x.
template <class T, int N>
__global__ void scale_kernel(RowBlocks grid, Rows<T> y, Rows<T> x, const Parts parts) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float factor = parts.factors[0];
#pragma unroll
      for (int part = 1; part < static_cast<int>(most_column_factors); ++part)
        if (part < parts.count && c + i >= parts.ends[part - 1]) factor = parts.factors[part];
      v[i] *= factor;
    }
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

template <class T, int N>
__global__ void scale_all_kernel(RowBlocks grid, Rows<T> y, Rows<T> x, float factor) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= factor;
    Pack<T, N>::of(v).store(y.row(r) + c, count);
  });
}

template <class T, int N>
void scale_packs(const Tensor& y, const Tensor& x, const Parts& parts) {
  if (parts.count == 1)
    launch_elementwise<N>("scale_columns, one factor", scale_all_kernel<T, N>, x.rows(), x.cols(),
                          rows_of<T>(y), rows_of<T>(x), parts.factors[0]);
  else
    launch_elementwise<N>("scale_columns", scale_kernel<T, N>, x.rows(), x.cols(), rows_of<T>(y),
                          rows_of<T>(x), parts);
}

void scale_columns(const Tensor& any_y, const Tensor& any_x, const ColumnFactors& factors) {
  const bool one_row = factors.count == 1 && all_contiguous(any_y, any_x);
  const Tensor y = as_one_row(any_y, one_row), x = as_one_row(any_x, one_row);
  Parts parts{};
  parts.count = factors.count;
  for (std::size_t i = 0; i < most_column_factors; ++i) {
    parts.ends[i] = factors.ends[i];
    parts.factors[i] = static_cast<float>(factors.factors[i]);
  }
  visit_storage("scale_columns", x.dtype(), [&]<class T>(TypeTag<T>) {
    rows_aligned(y, x) ? scale_packs<T, whole_pack<T>>(y, x, parts) : scale_packs<T, 1>(y, x, parts);
  });
}

const Provide provided[] = {{scale_columns_kernel, scale_columns}};

}  // namespace
}  // namespace nemocube::cuda

#include "core/cuda/elementwise.cuh"
#include "ops/scale_columns/scale_columns_kernels.h"

namespace nemocube::cuda {
namespace {

struct Parts {
  int count;
  std::int64_t ends[most_column_factors];
  float factors[most_column_factors];
};

/// The factor of a column, and where its part ends. No array is indexed by a variable, which would cost local
/// memory.
struct Part {
  float factor;
  std::int64_t end;
};
__device__ Part part_of(const Parts& parts, std::int64_t column) {
  Part found{parts.factors[0], parts.ends[0]};
#pragma unroll
  for (int i = 1; i < static_cast<int>(most_column_factors); ++i)
    if (i < parts.count && column >= parts.ends[i - 1]) found = {parts.factors[i], parts.ends[i]};
  return found;
}

// Few packs lie in several parts. y may be x.
template <class T, int N>
__global__ void scale_kernel(RowBlocks grid, Rows<T> y, Rows<T> x, const Parts parts) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<T, N>::load(x.row(r) + c, count).read(v);
    const Part first = part_of(parts, c);
    if (c + N <= first.end) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] *= first.factor;
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] *= part_of(parts, c + i).factor;
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

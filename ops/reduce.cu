#include "core/cuda/elementwise.cuh"
#include "ops/reduce_kernels.h"
#include "ops/segments.h"

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

// A thread adds up the rows of a segment, in their order, for N neighbouring columns.
template <class T, int N>
__global__ void segment_sums_kernel(RowBlocks grid, Rows<float> partial, Rows<const T> x, std::int64_t rows) {
  for_own_pack<N>(grid, [&](std::int64_t segment, std::int64_t c, std::int64_t count) {
    const std::int64_t first = segment * segment_rows;
    const int height = static_cast<int>(rows - first < segment_rows ? rows - first : segment_rows);
    const T* from = x.row(first) + c;
    float sums[N] = {};
#pragma unroll 8
    for (int r = 0; r < height; ++r, from += x.stride) {
      float v[N];
      Pack<T, N>::load(from, count).read(v);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += v[i];
    }
    constexpr int part = N < 4 ? N : 4;
#pragma unroll
    for (int i = 0; i < N; i += part) {
      float v[part];
#pragma unroll
      for (int j = 0; j < part; ++j) v[j] = sums[i + j];
      if (i < count) Pack<float, part>::of(v).store(partial.row(segment) + c + i, count - i);
    }
  });
}

template <class T, int N>
void sum_packs(const Tensor& partial, const Tensor& x) {
  const Rows<T> rows = rows_of<T>(x);
  launch_elementwise<N>("sums of segments of rows", segment_sums_kernel<T, N>, segments_of(x.rows()),
                        x.cols(), rows_of<float>(partial), Rows<const T>{rows.start, rows.stride}, x.rows());
}

void segment_rows_sums(const Tensor& partial, const Tensor& x) {
  if (x.numel() == 0) return;
  visit_storage("segment_sums", x.dtype(), [&]<class T>(TypeTag<T>) {
    rows_aligned(partial, x) ? sum_packs<T, whole_pack<T>>(partial, x) : sum_packs<T, 1>(partial, x);
  });
}

const Provide provided[] = {{sum_segments_kernel, sum}, {segment_sums, segment_rows_sums}};

}  // namespace
}  // namespace nemocube::cuda

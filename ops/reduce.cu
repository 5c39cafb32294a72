#include <set>

#include "core/cuda/elementwise.cuh"
#include "ops/reduce_kernels.h"
#include "ops/segments.h"

namespace nemocube::cuda {
namespace {

// A block sums 32 columns. Warp w adds segments w, w + 16, .. of them; the first warp adds the sums of the
// warps in their order. The order of all additions follows from the number of segments alone.
constexpr int columns = 32, sets = 16;

template <class T>
struct Sum {
  T* out;
  bool add;
  Rows<float> partial;
  std::int64_t segments, cols;
  unsigned first_block;
};
/// The sums of one launch.
template <class T>
struct Sums {
  static constexpr int most = 4;
  Sum<T> all[most];
  int count;
};

template <class T>
__global__ void __launch_bounds__(columns* sets) segments_kernel(const Sums<T> sums) {
  __shared__ float of_set[sets][columns];
  const int column = threadIdx.x % columns, set = threadIdx.x / columns;
  Sum<T> own = sums.all[0];
#pragma unroll
  for (int i = 1; i < sums.most; ++i)
    if (i < sums.count && blockIdx.x >= sums.all[i].first_block) own = sums.all[i];
  const std::int64_t c = std::int64_t{blockIdx.x - own.first_block} * columns + column;
  float sum = 0;
  if (c < own.cols)
#pragma unroll 8  // loads that are under way together
    for (std::int64_t s = set; s < own.segments; s += sets) sum += own.partial.row(s)[c];
  of_set[set][column] = sum;
  __syncthreads();
  if (set > 0 || c >= own.cols) return;
  for (int i = 1; i < sets; ++i) sum += of_set[i][column];
  own.out[c] = rounded<T>(own.add ? to_float(own.out[c]) + sum : sum);
}

template <class T>
void launch_sums(const SegmentSums& wanted, DType dtype) {
  Sums<T> sums{};
  unsigned blocks = 0;
  const auto finish = [&] {
    if (sums.count > 0) launch("sum of segments", segments_kernel<T>, blocks, columns * sets, sums);
    sums.count = 0;
    blocks = 0;
  };
  for (const auto& [out, partial] : wanted) {
    if (out.to.dtype() != dtype || partial.cols() == 0) continue;
    if (sums.count == sums.most) finish();
    sums.all[sums.count++] = {data_of<T>(out.to), out.how == Into::add, rows_of<float>(partial),
                              partial.rows(),     partial.cols(),       blocks};
    blocks += blocks_for(partial.cols(), columns);
  }
  finish();
}

void sum(const SegmentSums& sums) {
  std::set<DType> dtypes;
  for (const auto& [out, partial] : sums) dtypes.insert(out.to.dtype());
  for (const DType dtype : dtypes)
    visit_storage("sum_segments", dtype, [&]<class T>(TypeTag<T>) { launch_sums<T>(sums, dtype); });
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

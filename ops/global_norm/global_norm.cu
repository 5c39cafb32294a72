#include <cub/block/block_reduce.cuh>

#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/global_norm/global_norm_kernels.h"
#include "ops/global_norm/square_sum.h"
#include "ops/range_table.cuh"

// All sums are in f64, where no squares of f32 or bf16 numbers overflow or underflow. Their order follows
// from the sizes of the tensors alone: a block has one segment of a tensor, and one block adds the sums of
// all segments.
namespace nemocube::cuda {
namespace {

constexpr int threads = 256;
constexpr std::int64_t segment = 1 << 14;  // elements

/// A row of the table that the kernel reads: one tensor.
struct Range {
  const void* start;
  std::int64_t numel, first_block;
  DType dtype;
  bool aligned;
  bool operator==(const Range&) const = default;
};

template <class T, bool aligned>
__device__ double own_squares(const T* x, std::int64_t count) {
  constexpr int N = whole_pack<T>, packs_at_once = 4, step = threads * N;
  double sum = 0;
  for (std::int64_t first = static_cast<int>(threadIdx.x) * N; first < count; first += packs_at_once * step) {
    Pack<T, N> packs[packs_at_once];
#pragma unroll
    for (int j = 0; j < packs_at_once; ++j)
      if (const std::int64_t i = first + j * step; i < count)
        packs[j] = Pack<T, N>::template load<aligned>(x + i, count - i);
#pragma unroll
    for (int j = 0; j < packs_at_once; ++j) {
      float values[N];
      packs[j].read(values);  // zeros where there are no elements
#pragma unroll
      for (int i = 0; i < N; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  return sum;
}

template <class T>
__device__ double own_squares(const Range& range, std::int64_t start) {
  const T* x = static_cast<const T*>(range.start) + start;
  const std::int64_t count = range.numel - start < segment ? range.numel - start : segment;
  return range.aligned ? own_squares<T, true>(x, count) : own_squares<T, false>(x, count);
}

__global__ void __launch_bounds__(threads) squares_kernel(const Range* ranges, int count, double* partial) {
  using Reduce = cub::BlockReduce<double, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ Range range;
  if (threadIdx.x == 0) range = row_of_block(ranges, count);
  __syncthreads();
  const std::int64_t start = (blockIdx.x - range.first_block) * segment;
  const double sum =
      Reduce(storage).Sum(range.dtype == DType::f32 ? own_squares<float>(range, start)
                                                    : own_squares<__nv_bfloat16>(range, start));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// {sum, 0, whether it is finite}
__global__ void __launch_bounds__(threads)
    add_segments_kernel(double* square_sum, const double* partial, std::int64_t count) {
  using Reduce = cub::BlockReduce<double, threads>;
  __shared__ typename Reduce::TempStorage storage;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads) sum += partial[i];
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x > 0) return;
  square_sum[0] = sum;
  square_sum[1] = 0;
  square_sum[2] = isfinite(sum) ? 1 : 0;
}

void sum_of_squares(const Tensor& sum, std::span<const Tensor> tensors) {
  static RangeTable<Range> table("global norm");
  std::vector<Range> rows;
  std::int64_t blocks = 0;
  for (const Tensor& t : tensors) {
    visit_storage("global_norm", t.dtype(), [&]<class T>(TypeTag<T>) {
      rows.push_back({.start = data_of<T>(t),
                      .numel = t.numel(),
                      .first_block = blocks,
                      .dtype = t.dtype(),
                      .aligned = rows_aligned(t.reshape({-1}))});
    });
    blocks += blocks_for(t.numel(), segment);
  }
  const Tensor partial = Tensor::empty({blocks}, DType::f64, sum.device());
  const int count = static_cast<int>(rows.size());
  if (count > 0)
    launch("global_norm squares", squares_kernel, blocks_for(blocks, 1), threads,
           table.on_device(std::move(rows)), count, data_of<double>(partial));
  launch("global_norm segments", add_segments_kernel, 1, threads, data_of<double>(sum),
         static_cast<const double*>(data_of<double>(partial)), blocks);
}

// The rest is one thread's work.

__global__ void add_parts_kernel(double* sum, Rows<double> parts, std::int64_t count) {
  SquareSum all;
  for (std::int64_t r = 0; r < count; ++r) all = all + read_square_sum(parts.row(r));
  write_square_sum(sum, all);
}

void add_parts(const Tensor& sum, const Tensor& parts) {
  launch("global_norm add", add_parts_kernel, 1, 1, data_of<double>(sum), rows_of<double>(parts),
         parts.rows());
}

__global__ void decision_kernel(double* decision, const double* square_sum, const double* loss_sum,
                                double max_norm) {
  write_decision(decision, read_square_sum(square_sum), *loss_sum, max_norm);
}

void decide(const Tensor& decision, const Tensor& square_sum, const Tensor& loss_sum, double max_norm) {
  launch("global_norm decision", decision_kernel, 1, 1, data_of<double>(decision),
         static_cast<const double*>(data_of<double>(square_sum)),
         static_cast<const double*>(data_of<double>(loss_sum)), max_norm);
}

const Provide provided[] = {{sum_of_squares_kernel, sum_of_squares},
                            {add_square_sums_kernel, add_parts},
                            {clip_decision_kernel, decide}};

}  // namespace
}  // namespace nemocube::cuda

#include "core/cuda/elementwise.cuh"
#include "ops/expert_scale/expert_scale_kernels.h"
#include "ops/segments.h"

namespace nemocube::cuda {
namespace {

// y may be w.
template <class S>
__global__ void expert_scale_kernel_of(RowBlocks grid, Rows<float> y, Rows<float> w, Rows<int> experts,
                                       const S* scale) {
  for_own_pack<1>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t) {
    y.row(r)[c] = w.row(r)[c] * to_float(scale[experts.row(r)[c]]);
  });
}

void scale(const Tensor& any_y, const Tensor& any_w, const Tensor& any_experts, const Tensor& s) {
  if (any_w.numel() == 0) return;
  const bool one_row = all_contiguous(any_y, any_w, any_experts);
  const Tensor y = as_one_row(any_y, one_row), w = as_one_row(any_w, one_row),
               experts = as_one_row(any_experts, one_row);
  visit_storage("expert_scale", s.dtype(), [&]<class S>(TypeTag<S>) {
    launch_elementwise<1>("expert_scale", expert_scale_kernel_of<S>, w.rows(), w.cols(), rows_of<float>(y),
                          rows_of<float>(w), rows_of<std::int32_t>(experts), data_of<S>(s));
  });
}

/// What a choice adds to its expert's sum.
struct __align__(8) Term {
  int expert;
  float product;
};

constexpr int sums_threads = 128, terms_at_once = 512;

// A block has a segment of tokens and as many experts as threads. Each thread goes over the choices of all
// experts, in order, and adds those of its own.
__global__ void __launch_bounds__(sums_threads)
    expert_scale_sums_kernel(Rows<float> partial, Rows<float> dy, Rows<float> w, Rows<int> experts,
                             std::int64_t rows, int k, int n) {
  __shared__ Term terms[terms_at_once];
  const std::int64_t first = blockIdx.x * segment_rows;
  const int height = static_cast<int>(rows - first < segment_rows ? rows - first : segment_rows);
  const int expert = static_cast<int>(blockIdx.y * sums_threads + threadIdx.x);
  const std::int64_t choices = std::int64_t{height} * k;
  float sum = 0;
  for (std::int64_t begin = 0; begin < choices; begin += terms_at_once) {
    const int count = static_cast<int>(choices - begin < terms_at_once ? choices - begin : terms_at_once);
    __syncthreads();  // the terms before are used
    for (int i = static_cast<int>(threadIdx.x); i < count; i += sums_threads) {
      const std::int64_t row = first + (begin + i) / k;
      const int j = static_cast<int>((begin + i) % k);
      terms[i] = {experts.row(row)[j], dy.row(row)[j] * w.row(row)[j]};
    }
    __syncthreads();
    for (int i = 0; i < count; ++i)
      if (const Term term = terms[i]; term.expert == expert) sum += term.product;
  }
  if (expert < n) partial.row(blockIdx.x)[expert] = sum;
}

void sums(const Tensor& partial, const Tensor& dy, const Tensor& w, const Tensor& experts) {
  if (dy.rows() == 0) return;
  const auto n = static_cast<int>(partial.cols());
  const dim3 blocks(blocks_for(dy.rows(), segment_rows), blocks_for(n, sums_threads));
  launch("expert_scale sums", expert_scale_sums_kernel, blocks, sums_threads, rows_of<float>(partial),
         rows_of<float>(dy), rows_of<float>(w), rows_of<std::int32_t>(experts), dy.rows(),
         static_cast<int>(w.cols()), n);
}

const Provide provided[] = {{expert_scale_kernel, scale}, {expert_scale_sums, sums}};

}  // namespace
}  // namespace nemocube::cuda

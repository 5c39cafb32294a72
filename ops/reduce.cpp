#include "ops/reduce.h"

#include <algorithm>
#include <vector>

#include "ops/reduce_kernels.h"

namespace nemocube {
namespace {

template <class Out, class In>
void sum_columns(const Output& out, const Tensor& partial) {
  const std::int64_t n = partial.rows(), cols = partial.cols();
  Out* to = out.to.data<Out>();
  parallel_for(cols, 512, [&](std::int64_t begin, std::int64_t end) {
    std::vector<In> sum(static_cast<std::size_t>(end - begin), In{0});
    for (std::int64_t s = 0; s < n; ++s) {
      const In* __restrict row = partial.row<In>(s) + begin;
      for (std::int64_t c = 0; c < end - begin; ++c) sum[static_cast<std::size_t>(c)] += row[c];
    }
    for (std::int64_t c = begin; c < end; ++c) {
      const In have = out.how == Into::add ? static_cast<In>(static_cast<acc_t<Out>>(to[c])) : In{0};
      to[c] = static_cast<Out>(static_cast<acc_t<Out>>(have + sum[static_cast<std::size_t>(c - begin)]));
    }
  });
}

}  // namespace

void cpu::sum_segments(const SegmentSums& sums) {
  for (const auto& [out, partial] : sums)
    visit_float("sum_segments", out.to.dtype(), [&]<class Out>(TypeTag<Out>) {
      visit_accumulate("sum_segments", partial.dtype(),
                       [&]<class In>(TypeTag<In>) { sum_columns<Out, In>(out, partial); });
    });
}

void cpu::segment_sums(const Tensor& partial, const Tensor& x) {
  const std::int64_t cols = x.cols();
  visit_float("segment_sums", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    for_segments(x.rows(), [&](std::int64_t s, std::int64_t first, std::int64_t last) {
      A* __restrict sum = partial.row<A>(s);
      std::fill_n(sum, cols, A(0));
      for (std::int64_t r = first; r < last; ++r) {
        const T* __restrict row = x.row<T>(r);
        for (std::int64_t c = 0; c < cols; ++c) sum[c] += static_cast<A>(row[c]);
      }
    });
  });
}

void sum_segments(const SegmentSums& sums) {
  for (const auto& [out, partial] : sums)
    expect(out.to.numel() == partial.cols() && out.to.contiguous(), "column sums of ", partial.shape(),
           " into ", out.to.shape());
  if (!sums.empty()) sum_segments_kernel(sums);
}
void sum_segments(const Output& out, const Tensor& partial) { sum_segments(SegmentSums{{out, partial}}); }

void sum_rows(const Output& out, const Tensor& x) {
  const Tensor partial =
      Tensor::empty({segments_of(x.rows()), x.cols()}, accumulate_dtype(x.dtype()), x.device());
  segment_sums(partial, x);
  sum_segments(out, partial);
}

}  // namespace nemocube

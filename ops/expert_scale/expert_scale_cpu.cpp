#include <algorithm>

#include "ops/expert_scale/expert_scale_kernels.h"
#include "ops/reduce.h"

namespace nemocube::cpu {
namespace {

template <class S, class A>
void scale_rows(const Tensor& y, const Tensor& w, const Tensor& experts, const S* scale) {
  const std::int64_t k = w.cols();
  parallel_for(w.rows(), 1 + 4096 / (k + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const A* from = w.row<A>(t);
      const std::int32_t* chosen = experts.row<std::int32_t>(t);
      A* to = y.row<A>(t);
      for (std::int64_t j = 0; j < k; ++j) to[j] = from[j] * static_cast<A>(scale[chosen[j]]);
    }
  });
}

}  // namespace

void expert_scale(const Tensor& y, const Tensor& w, const Tensor& experts, const Tensor& scale) {
  if (w.numel() == 0) return;
  visit_float("expert_scale", scale.dtype(),
              [&]<class S>(TypeTag<S>) { scale_rows<S, acc_t<S>>(y, w, experts, scale.data<S>()); });
}

void expert_scale_sums(const Tensor& partial, const Tensor& dy, const Tensor& w, const Tensor& experts) {
  visit_accumulate("expert_scale", w.dtype(), [&]<class A>(TypeTag<A>) {
    for_segments(dy.rows(), [&](std::int64_t segment, std::int64_t first, std::int64_t last) {
      A* sums = partial.row<A>(segment);
      std::fill_n(sums, partial.cols(), A(0));
      for (std::int64_t t = first; t < last; ++t) {
        const A *back = dy.row<A>(t), *from = w.row<A>(t);
        const std::int32_t* chosen = experts.row<std::int32_t>(t);
        for (std::int64_t j = 0; j < w.cols(); ++j) sums[chosen[j]] += back[j] * from[j];
      }
    });
  });
}

}  // namespace nemocube::cpu

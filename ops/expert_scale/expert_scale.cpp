#include "ops/expert_scale/expert_scale.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/expert_scale/expert_scale_kernels.h"
#include "ops/result_over.h"

namespace nemocube {
namespace {

void check_choices(const Tensor& w, const Tensor& experts, const Tensor& scale) {
  require(w.defined() && w.ndim() == 2, "expert_scale: weights: want shape [T, k], got ", w.shape());
  require(w.dtype() == DType::f32 || w.dtype() == DType::f64, "expert_scale: weights: want f32 or f64, got ",
          w.dtype());
  check_shape("expert_scale: experts", experts, w.shape());
  check_dtype("expert_scale: experts", experts, DType::i32);
  require(scale.defined() && scale.ndim() == 1 && scale.numel() > 0,
          "expert_scale: scale: want one number of each expert, got shape ", scale.shape());
  require(is_float(scale.dtype()) && accumulate_dtype(scale.dtype()) == w.dtype(),
          "expert_scale: scale: want ", w.dtype(), w.dtype() == DType::f32 ? " or bf16" : "",
          " beside weights of ", w.dtype(), ", got ", scale.dtype());
}

}  // namespace

Var expert_scale(Context& ctx, Var weights, const Tensor& experts, const Var& scale) {
  static Zone forward_zone("expert_scale/forward"), backward_zone("expert_scale/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor w = weights.value(), s = scale.value();
  check_choices(w, experts, s);
  const bool wants = ctx.records({&weights, &scale}), keeps_w = wants && scale.needs_grad();
  const std::shared_ptr<GradNode> nw = weights.node(), ns = scale.node();
  weights = {};  // `w` is now the only holder if the caller moved the weights in
  Var y = make_result(keeps_w ? Tensor::empty(w.shape(), w.dtype(), w.device()) : result_over(w, nw.get()),
                      wants);
  expert_scale_kernel(y.value(), w, experts, s);
  if (y.needs_grad())
    ctx.tape->record("expert_scale", [kept = keeps_w ? w : Tensor(), experts, s, nw, ns, out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      if (ns) {
        const Tensor partial = Tensor::empty({segments_of(dy.rows()), s.numel()}, dy.dtype(), dy.device());
        expert_scale_sums(partial, dy, kept, experts);
        ContributedSums sums;
        sums.add(ns, partial, s.dtype());
        sums.contribute();
      }
      if (!nw) return;
      const Tensor dw = contribution_over(nw.get(), dy);
      expert_scale_kernel(dw, dy, experts, s);
      nw->add(dw);
    });
  return y;
}

}  // namespace nemocube

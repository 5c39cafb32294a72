#include "ops/scale_by/scale_by.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/result_over.h"
#include "ops/scale_by/scale_by_kernels.h"

namespace nemocube {
namespace {

void check_factor(const Tensor& x, const Tensor& s) {
  require(x.defined(), "scale_by: x: got no tensor");
  require(s.defined(), "scale_by: s: got no tensor");
  require(is_float(x.dtype()), "scale_by: x: want f32, f64 or bf16, got ", x.dtype());
  require(x.ndim() > 0, "scale_by: x: want at least one dimension");
  require(s.numel() == 1, "scale_by: s: want one element, got shape ", s.shape());
  if (s.dtype() != accumulate_dtype(x.dtype())) check_dtype("scale_by: s", s, x.dtype());
  require(s.device() == x.device(), "scale_by: s: want it on ", x.device(), ", where x is, got ", s.device());
}

}  // namespace

Var scale_by(Context& ctx, Var x, const Tensor& s) {
  static Zone forward_zone("scale_by/forward"), backward_zone("scale_by/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor in = x.value();
  check_factor(in, s);
  const bool wants = ctx.records({&x});
  const std::shared_ptr<GradNode> node = x.node();
  x = {};  // `in` is now the only holder if the caller moved x in
  Var y = make_result(result_over(in, node.get()), wants);
  if (in.numel() > 0) scale_by_kernel(y.value(), in, s);
  if (y.needs_grad())
    ctx.tape->record("scale_by", [s, node, out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const Tensor dx = contribution_over(node.get(), dy);
      if (dy.numel() > 0) scale_by_kernel(dx, dy, s);
      node->add(dx);
    });
  return y;
}

}  // namespace nemocube

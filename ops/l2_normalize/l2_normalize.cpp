#include "ops/l2_normalize/l2_normalize.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/l2_normalize/l2_normalize_kernels.h"

namespace nemocube {

Var l2_normalize(Context& ctx, const Var& x, double eps) {
  static Zone forward_zone("l2_normalize/forward"), backward_zone("l2_normalize/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor& in = x.value();
  require(in.defined() && in.ndim() >= 1, "l2_normalize: x: want at least one dimension");
  require(is_float(in.dtype()), "l2_normalize: x: want f32, f64 or bf16, got ", in.dtype());
  require(eps > 0, "l2_normalize: eps: want a value > 0, got ", eps);
  Var y = make_result(Tensor::empty(in.shape(), in.dtype(), in.device()), ctx.records({&x}));
  l2_normalize_forward(y.value(), in, eps);
  if (y.needs_grad())
    ctx.tape->record("l2_normalize", [in, eps, node = x.node(), out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      contribute(node, [&](const Output& dx) { l2_normalize_backward(dx, dy, in, eps); });
    });
  return y;
}

}  // namespace nemocube

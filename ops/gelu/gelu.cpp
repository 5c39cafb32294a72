#include "ops/gelu/gelu.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/gelu/gelu_kernels.h"
#include "ops/result_over.h"

namespace nemocube {

Var gelu(Context& ctx, Var x) {
  static Zone forward_zone("gelu/forward"), backward_zone("gelu/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor in = x.value();
  require(in.defined(), "gelu: x: got no tensor");
  require(is_float(in.dtype()), "gelu: x: want f32, f64 or bf16, got ", in.dtype());
  const bool wants = ctx.records({&x});
  const std::shared_ptr<GradNode> node = x.node();
  x = {};  // `in` is now the only holder if the caller moved x in
  Var y = make_result(
      wants ? Tensor::empty(in.shape(), in.dtype(), in.device()) : result_over(in, node.get()), wants);
  gelu_forward(y.value(), in);
  if (y.needs_grad()) {
    y.node()->again = [in] {
      const Tensor value = Tensor::empty(in.shape(), in.dtype(), in.device());
      gelu_forward(value, in);
      return value;
    };
    ctx.tape->record("gelu", [in, node, out = y.node()] {
      out->again = {};  // holds x too
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const Tensor dx = contribution_over(node.get(), dy, in);
      gelu_backward(dx, dy, in);
      node->add(dx);
    });
  }
  return y;
}

}  // namespace nemocube

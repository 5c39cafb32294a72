#include "ops/relu2/relu2.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/relu2/relu2_kernels.h"
#include "ops/result_over.h"

namespace nemocube {

Var relu2(Context& ctx, Var x) {
  require(x.defined(), "relu2: x: got no tensor");
  require(is_float(x.value().dtype()), "relu2: x: want f32, f64 or bf16, got ", x.value().dtype());
  static Zone forward_zone("relu2/forward"), backward_zone("relu2/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor in = x.value();
  const bool wants = ctx.records({&x});
  const std::shared_ptr<GradNode> node = x.node();
  x = {};  // `in` is now the only holder if the caller moved x in
  Var y = make_result(result_over(in, node.get()), wants);
  relu2_forward(y.value(), in);
  if (y.needs_grad())
    ctx.tape->record("relu2", [value = y.value(), node, out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const Tensor dx = contribution_over(node.get(), dy);
      relu2_backward(dx, dy, value);
      node->add(dx);
    });
  return y;
}

}  // namespace nemocube

#include "ops/row_gate/row_gate.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/result_over.h"
#include "ops/row_gate/row_gate_kernels.h"

namespace nemocube {
namespace {

void check(const Tensor& x, const Tensor& gate) {
  require(x.defined(), "row_gate: x: got no tensor");
  require(gate.defined(), "row_gate: gate: got no tensor");
  require(is_float(x.dtype()), "row_gate: x: want f32, f64 or bf16, got ", x.dtype());
  require(x.ndim() > 0, "row_gate: x: want at least one dimension");
  check_dtype("row_gate: gate", gate, x.dtype());
  Shape of_rows = x.shape();
  of_rows[x.ndim() - 1] = 1;
  check_shape("row_gate: gate", gate, of_rows);
}

}  // namespace

Var row_gate(Context& ctx, Var x, Var gate) {
  static Zone forward_zone("row_gate/forward"), backward_zone("row_gate/backward");
  const ZoneTimer timer(forward_zone);
  const Tensor in = x.value(), g = gate.value();
  check(in, g);
  const bool wants = ctx.records({&x, &gate});
  const std::shared_ptr<GradNode> nx = x.node(), ng = gate.node();
  const bool keeps_x = wants && ng;
  x = {};  // `in` is now the only holder if the caller moved x in
  gate = {};
  Var y = make_result(
      keeps_x ? Tensor::empty(in.shape(), in.dtype(), in.device()) : result_over(in, nx.get()), wants);
  row_gate_forward(y.value(), in, g);
  if (y.needs_grad())
    ctx.tape->record("row_gate", [kept = keeps_x ? in : Tensor(), g, nx, ng, out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const bool one_node = nx == ng;  // rows of one number: the node has a place for one of the gradients
      const Tensor dx = nx ? contribution_over(one_node ? nullptr : nx.get(), dy, kept) : Tensor();
      if (ng) {
        const Tensor dgate =
            one_node ? Tensor::empty(g.shape(), g.dtype(), g.device()) : contribution(*ng, g.dtype());
        row_gate_backward(dx, dgate, dy, kept, g);
        ng->add(dgate);
      } else {
        row_gate_forward(dx, dy, g);
      }
      if (nx) nx->add(dx);
    });
  return y;
}

}  // namespace nemocube

#include "ops/gated_activation/gated_activation.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/gated_activation/gated_activation_kernels.h"
#include "ops/result_over.h"

namespace nemocube {
namespace {
Zone& forward_zone() {
  static Zone zone("gated_activation/forward");
  return zone;
}
Zone& backward_zone() {
  static Zone zone("gated_activation/backward");
  return zone;
}
}  // namespace

Var gated_activation(Context& ctx, Var gate, Var up, GateActivation phi) {
  const ZoneTimer timer(forward_zone());
  const Tensor g = gate.value(), u = up.value();
  require(g.defined(), "gated_activation: gate: got no tensor");
  require(u.defined(), "gated_activation: up: got no tensor");
  require(is_float(g.dtype()), "gated_activation: gate: want f32, f64 or bf16, got ", g.dtype());
  check_dtype("gated_activation: up", u, g.dtype());
  check_shape("gated_activation: up", u, g.shape());

  const bool wants = ctx.records({&gate, &up});
  const std::shared_ptr<GradNode> ng = gate.node(), nu = up.node();
  gate = {};  // g and u are now the only holders of what the caller moved in
  up = {};
  const bool over_gate = !wants && may_overwrite(g, ng.get()), over_up = !wants && may_overwrite(u, nu.get());
  Var y = make_result(over_gate ? g : over_up ? u : Tensor::empty(g.shape(), g.dtype(), g.device()), wants);
  gated_activation_forward(y.value(), g, u, phi);
  if (y.needs_grad()) {
    y.node()->again = [g, u, phi] {
      const Tensor value = Tensor::empty(g.shape(), g.dtype(), g.device());
      gated_activation_forward(value, g, u, phi);
      return value;
    };
    ctx.tape->record("gated_activation", [g, u, ng, nu, phi, out = y.node()] {
      out->again = {};  // holds g and u too
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone());
      const Tensor dy = out->take();
      const Tensor dgate = ng ? contribution_over(ng.get(), dy, g) : Tensor();
      // A node of both operands has a place for one of the gradients only.
      const Tensor dup = nu ? contribution_over(nu == ng ? nullptr : nu.get(), dy, u) : Tensor();
      gated_activation_backward(dgate, dup, dy, g, u, phi);
      if (ng) ng->add(dgate);
      if (nu) nu->add(dup);
    });
  }
  return y;
}

namespace {
struct Halves {
  explicit Halves(const Tensor& both)
      : gate(both.narrow(-1, 0, both.cols() / 2)), up(both.narrow(-1, both.cols() / 2, both.cols() / 2)) {}
  Tensor gate, up;
};

Tensor activated(const Tensor& gate_up, GateActivation phi) {
  const Halves in(gate_up);
  const Tensor y = Tensor::empty(in.gate.shape(), gate_up.dtype(), gate_up.device());
  gated_activation_forward(y, in.gate, in.up, phi);
  return y;
}
}  // namespace

Var gated_activation(Context& ctx, Var gate_up, GateActivation phi) {
  const ZoneTimer timer(forward_zone());
  const Tensor both = gate_up.value();
  require(both.defined(), "gated_activation: gate_up: got no tensor");
  require(is_float(both.dtype()), "gated_activation: gate_up: want f32, f64 or bf16, got ", both.dtype());
  require(both.ndim() >= 1 && both.cols() % 2 == 0,
          "gated_activation: gate_up: want an even last dimension, got shape ", both.shape());
  const bool wants = ctx.records({&gate_up});
  const std::shared_ptr<GradNode> node = gate_up.node();
  gate_up = {};  // `both` is now the only holder if the caller moved gate_up in
  Var y = make_result(activated(both, phi), wants);
  if (!y.needs_grad()) return y;
  y.node()->again = [both, phi] { return activated(both, phi); };
  ctx.tape->record("gated_activation", [both, node, phi, out = y.node()] {
    out->again = {};  // holds `both` too
    if (!out->filled()) return;
    const ZoneTimer backward_timer(backward_zone());
    const Tensor dy = out->take();
    // dy is no place for the gradient, which is twice as wide.
    const bool own_place = node->has_place() || !both.unique();
    const Tensor dboth = own_place ? contribution(*node, both.dtype()) : both;
    const Halves in(both), to(dboth);
    gated_activation_backward(to.gate, to.up, dy, in.gate, in.up, phi);
    node->add(dboth);
  });
  return y;
}

}  // namespace nemocube

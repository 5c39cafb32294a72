#include "ops/causal_conv1d/causal_conv1d.h"

#include "core/profile.h"
#include "ops/causal_conv1d/causal_conv1d_kernels.h"
#include "ops/contribute.h"

namespace nemocube {
namespace {

constexpr std::string_view op = "causal_conv1d_silu";

void check_parameter_dtype(std::string_view name, const Tensor& t, DType activations) {
  require(t.dtype() == activations || t.dtype() == accumulate_dtype(activations), op, ": ", name, " is ",
          t.dtype(), " for an input of ", activations);
}

// Where the gradient of a parameter goes: the buffer of a leaf, else a new tensor.
Output parameter_gradient(GradNode* node, const Tensor& parameter) {
  if (!node) return {};
  if (node->leaf()) return node->into();
  return {Tensor::empty(parameter.shape(), parameter.dtype(), parameter.device()), Into::set};
}

}  // namespace

Var causal_conv1d_silu(Context& ctx, const Var& x, const Var& weight, const Var& bias,
                       const Sequences& sequences, const Tensor* initial_state, Tensor* final_state) {
  static Zone forward_zone("causal_conv1d/forward"), backward_zone("causal_conv1d/backward");
  const ZoneTimer timer(forward_zone);
  const DType dtype = x.value().dtype();
  require(x.value().ndim() == 2, op, ": x has shape ", x.shape(), ", want [tokens, channels]");
  require(is_float(dtype), op, ": x is ", dtype, ", want f32, f64 or bf16");
  const std::int64_t channels = x.shape()[1];
  require(weight.value().ndim() == 3 && weight.shape()[0] == channels && weight.shape()[1] == 1 &&
              weight.shape()[2] >= 1,
          op, ": weight has shape ", weight.shape(), ", want [", channels, ", 1, taps]");
  check_parameter_dtype("weight", weight.value(), dtype);
  const std::int64_t taps = weight.shape()[2];
  if (bias.defined()) {
    check_shape("causal_conv1d_silu: bias", bias.value(), {channels});
    check_parameter_dtype("bias", bias.value(), dtype);
  }
  sequences.check(op, x.shape()[0]);
  const Shape state_shape{sequences.count(), taps - 1, channels};
  if (initial_state) {
    check_shape("causal_conv1d_silu: initial state", *initial_state, state_shape);
    check_dtype("causal_conv1d_silu: initial state", *initial_state, accumulate_dtype(dtype));
  }

  const ConvInputs in{x.value(), weight.value(), bias.value(), initial_state ? *initial_state : Tensor(),
                      sequences.on(x.value().device())};
  Var y = make_result(Tensor::empty(x.shape(), dtype, in.x.device()), ctx.records({&x, &weight, &bias}));
  causal_conv1d_forward(y.value(), in);
  if (final_state) {
    const Tensor state = Tensor::empty(state_shape, accumulate_dtype(dtype), in.x.device());
    causal_conv1d_final_state(state, in);
    *final_state = state;
  }
  if (!y.needs_grad()) return y;

  ctx.tape->record(
      "causal_conv1d_silu", [in, nx = x.node(), nw = weight.node(), nb = bias.node(), out = y.node()] {
        if (!out->filled()) return;
        const ZoneTimer backward_timer(backward_zone);
        const Tensor dy = out->take();
        const Tensor dx = nx ? contribution(*nx, in.x.dtype()) : Tensor();
        const Output dw = parameter_gradient(nw.get(), in.weight), db = parameter_gradient(nb.get(), in.bias);
        causal_conv1d_backward(dx, dw, db, dy, in);
        if (nx) nx->add(dx);
        if (nw && !nw->leaf()) nw->add(dw.to);
        if (nb && !nb->leaf()) nb->add(db.to);
      });
  return y;
}

}  // namespace nemocube

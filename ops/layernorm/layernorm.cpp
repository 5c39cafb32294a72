#include "ops/layernorm/layernorm.h"

#include "core/profile.h"
#include "ops/layernorm/layernorm_kernels.h"
#include "ops/row_norm.h"

namespace nemocube {

namespace {

void check_inputs(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_normed(op, x, eps);
  check_norm_weight(op, x, weight);
  if (!bias) return;
  check_shape(cat(op, ": bias"), bias, {x.cols()});
  check_dtype(cat(op, ": bias"), bias, x.dtype());
}

NormForward forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                    double eps) {
  static Zone zone("layernorm/forward");
  const ZoneTimer timer(zone);
  NormForward o = norm_forward_operands(NormForm::centred, x, residual, weight, eps);
  o.bias = bias;
  layernorm_forward(o);
  return o;
}

struct Backward {
  Var weight, bias;
  Tensor x, mean, inv_std;
  void operator()(const Tensor& dx, const Tensor& dy, const Tensor& extra) const {
    static Zone zone("layernorm/backward");
    const ZoneTimer timer(zone);
    const Output dw = parameter_gradient(weight), db = parameter_gradient(bias);
    layernorm_backward({.dx = dx,
                        .dw = dw,
                        .db = db,
                        .dy = dy,
                        .extra = extra,
                        .x = x,
                        .weight = weight.value(),
                        .mean = mean,
                        .inv = inv_std});
    add_parameter_gradient(weight, dw);
    add_parameter_gradient(bias, db);
  }
};

}  // namespace

Var layernorm(Context& ctx, const Var& x, const Var& weight, const Var& bias, double eps) {
  check_inputs("layernorm", x.value(), weight.value(), bias.value(), eps);
  const NormForward r = forward(x.value(), {}, weight.value(), bias.value(), eps);
  Var y = make_result(r.y, ctx.records({&x, &weight, &bias}));
  if (y.needs_grad()) {
    compute_again(y, [x = x.value(), w = weight.value(), b = bias.value(), eps] {
      return forward(x, {}, w, b, eps).y;
    });
    record_norm(*ctx.tape, "layernorm", x, y, Backward{weight, bias, x.value(), r.mean, r.inv});
  }
  return y;
}

ResidualNorm residual_layernorm(Context& ctx, const Var& x, const Var& residual, const Var& weight,
                                const Var& bias, double eps) {
  check_inputs("residual_layernorm", x.value(), weight.value(), bias.value(), eps);
  check_residual("residual_layernorm", x.value(), residual.value());
  const NormForward r = forward(x.value(), residual.value(), weight.value(), bias.value(), eps);
  const bool to_sum = ctx.records({&x, &residual});
  ResidualNorm out{make_result(r.sum, to_sum), make_result(r.y, to_sum || ctx.records({&weight, &bias}))};
  if (out.normed.needs_grad()) {
    compute_again(out.normed, [sum = r.sum, w = weight.value(), b = bias.value(), eps] {
      return forward(sum, {}, w, b, eps).y;
    });
    record_residual_norm(*ctx.tape, "residual_layernorm", x, residual, out,
                         Backward{weight, bias, r.sum, r.mean, r.inv});
  }
  return out;
}

}  // namespace nemocube

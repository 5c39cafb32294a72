#include "ops/rmsnorm/rmsnorm.h"

#include <cmath>

#include "core/profile.h"
#include "core/variants.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/row_norm.h"
#include "ops/view/view.h"

namespace nemocube {

namespace {

enum class RmsnormVariant { fused, separate };
const Variants<RmsnormVariant> rmsnorm_variants("rmsnorm", {{RmsnormVariant::fused, "fused"},
                                                            {RmsnormVariant::separate, "separate"}});

void check_inputs(const char* op, const Tensor& x, const Tensor& weight, double eps, double offset) {
  check_normed(op, x, eps);
  if (weight) check_norm_weight(op, x, weight);
  require(std::isfinite(offset), op, ": offset: want a finite value, got ", offset);
  require(weight || offset == 0, op, ": offset: want 0 without a weight, got ", offset);
}

NormForward forward(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                    double offset) {
  static Zone zone("rmsnorm/forward");
  const ZoneTimer timer(zone);
  NormForward o = norm_forward_operands(form_of(weight, offset), x, residual, weight, eps);
  o.offset = offset;
  rmsnorm_forward(o);
  return o;
}

struct Backward {
  Var weight;
  Tensor x, inv_rms;
  double offset;
  void operator()(const Tensor& dx, const Tensor& dy, const Tensor& extra) const {
    static Zone zone("rmsnorm/backward");
    const ZoneTimer timer(zone);
    const Output dw = parameter_gradient(weight);
    rmsnorm_backward({.dx = dx,
                      .dw = dw,
                      .db = {},
                      .dy = dy,
                      .extra = extra,
                      .x = x,
                      .weight = weight.value(),
                      .mean = {},
                      .inv = inv_rms,
                      .offset = offset});
    add_parameter_gradient(weight, dw);
  }
};

}  // namespace

Var rmsnorm(Context& ctx, const Var& x, const Var& weight, double eps, double offset) {
  check_inputs("rmsnorm", x.value(), weight.value(), eps, offset);
  const NormForward r = forward(x.value(), {}, weight.value(), eps, offset);
  Var y = make_result(r.y, ctx.records({&x, &weight}));
  if (y.needs_grad()) {
    compute_again(
        y, [x = x.value(), w = weight.value(), eps, offset] { return forward(x, {}, w, eps, offset).y; });
    record_norm(*ctx.tape, "rmsnorm", x, y, Backward{weight, x.value(), r.inv, offset});
  }
  return y;
}

ResidualNorm residual_rmsnorm(Context& ctx, const Var& x, const Var& residual, const Var& weight, double eps,
                              double offset) {
  check_inputs("residual_rmsnorm", x.value(), weight.value(), eps, offset);
  check_residual("residual_rmsnorm", x.value(), residual.value());
  if (rmsnorm_variants.chosen(ctx, x.value().device()) == RmsnormVariant::separate) {
    const Var sum = add(ctx, x, residual);
    return {sum, rmsnorm(ctx, sum, weight, eps, offset)};
  }
  const NormForward r = forward(x.value(), residual.value(), weight.value(), eps, offset);
  const bool to_sum = ctx.records({&x, &residual});
  ResidualNorm out{make_result(r.sum, to_sum), make_result(r.y, to_sum || ctx.records({&weight}))};
  if (out.normed.needs_grad()) {
    compute_again(out.normed, [sum = r.sum, w = weight.value(), eps, offset] {
      return forward(sum, {}, w, eps, offset).y;
    });
    record_residual_norm(*ctx.tape, "residual_rmsnorm", x, residual, out,
                         Backward{weight, r.sum, r.inv, offset});
  }
  return out;
}

}  // namespace nemocube

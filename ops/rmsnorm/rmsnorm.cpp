#include "ops/rmsnorm/rmsnorm.h"

#include <cmath>

#include "core/profile.h"
#include "core/variants.h"
#include "ops/contribute.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/view/view.h"

namespace nemocube {

namespace {

enum class RmsnormVariant { fused, separate };
const Variants<RmsnormVariant> rmsnorm_variants("rmsnorm", {{RmsnormVariant::fused, "fused"},
                                                            {RmsnormVariant::separate, "separate"}});

void check_inputs(const char* op, const Tensor& x, const Tensor& weight, double eps, double offset) {
  require(x.defined() && x.ndim() >= 1, op, ": x: want at least one dimension");
  require(is_float(x.dtype()), op, ": x: want f32, f64 or bf16, got ", x.dtype());
  require(x.cols() >= 1, op, ": x: want at least one column, got shape ", x.shape());
  check_shape(cat(op, ": weight"), weight, {x.cols()});
  check_dtype(cat(op, ": weight"), weight, x.dtype());
  require(eps >= 0, op, ": eps: want a value >= 0, got ", eps);
  require(std::isfinite(offset), op, ": offset: want a finite value, got ", offset);
}

struct Normed {
  Tensor y, inv_rms, sum;
};
Normed forward(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double offset) {
  static Zone zone("rmsnorm/forward");
  const ZoneTimer timer(zone);
  Normed out;
  out.y = Tensor::empty(x.shape(), x.dtype(), x.device());
  out.inv_rms = Tensor::empty({x.rows()}, accumulate_dtype(x.dtype()), x.device());
  if (residual) out.sum = Tensor::empty(x.shape(), x.dtype(), x.device());
  rmsnorm_forward(out.y, out.inv_rms, out.sum, x, residual, weight, eps, offset);
  return out;
}

void backward(const Tensor& dx, GradNode* weight_node, const Tensor& dy, const Tensor& extra, const Tensor& x,
              const Tensor& weight, const Tensor& inv_rms, double offset) {
  static Zone zone("rmsnorm/backward");
  const ZoneTimer timer(zone);
  Output dw;
  if (weight_node)
    dw = weight_node->leaf()
             ? weight_node->into()
             : Output{Tensor::empty(weight.shape(), weight.dtype(), weight.device()), Into::set};
  rmsnorm_backward(dx, dw, dy, extra, x, weight, inv_rms, offset);
  if (weight_node && !weight_node->leaf()) weight_node->add(dw.to);
}

}  // namespace

Var rmsnorm(Context& ctx, const Var& x, const Var& weight, double eps, double offset) {
  check_inputs("rmsnorm", x.value(), weight.value(), eps, offset);
  const Normed r = forward(x.value(), {}, weight.value(), eps, offset);
  Var y = make_result(r.y, ctx.records({&x, &weight}));
  if (y.needs_grad())
    ctx.tape->record("rmsnorm", [x, weight, offset, inv_rms = r.inv_rms, out = y.node()] {
      if (!out->filled()) return;
      const Tensor dy = out->take();
      const Tensor dx = x.node() ? contribution_over(x.node().get(), dy) : Tensor();
      backward(dx, weight.node().get(), dy, {}, x.value(), weight.value(), inv_rms, offset);
      if (x.node()) x.node()->add(dx);
    });
  return y;
}

ResidualNorm residual_rmsnorm(Context& ctx, const Var& x, const Var& residual, const Var& weight, double eps,
                              double offset) {
  check_inputs("residual_rmsnorm", x.value(), weight.value(), eps, offset);
  check_shape("residual_rmsnorm: residual", residual.value(), x.shape());
  check_dtype("residual_rmsnorm: residual", residual.value(), x.value().dtype());
  if (rmsnorm_variants.chosen(ctx, x.value().device()) == RmsnormVariant::separate) {
    const Var sum = add(ctx, x, residual);
    return {sum, rmsnorm(ctx, sum, weight, eps, offset)};
  }
  const Normed r = forward(x.value(), residual.value(), weight.value(), eps, offset);
  const bool to_sum = ctx.records({&x, &residual});
  ResidualNorm out{make_result(r.sum, to_sum), make_result(r.y, to_sum || ctx.records({&weight}))};
  if (out.normed.needs_grad())
    ctx.tape->record(
        "residual_rmsnorm", [nx = x.node(), nr = residual.node(), weight, offset, sum = r.sum,
                             inv_rms = r.inv_rms, n_sum = out.sum.node(), n_normed = out.normed.node()] {
          // take() leaves one holder, so that the result may overwrite the tensor.
          Tensor extra = n_sum && n_sum->filled() ? n_sum->take() : Tensor();
          Tensor d_sum;
          if (!n_normed->filled()) {
            d_sum = std::move(extra);
          } else {
            const Tensor dy = n_normed->take();
            // The result may be written to one input's place for its gradient only when the
            // other input wants no gradient.
            GradNode* one = nx && !nr ? nx.get() : nr && !nx ? nr.get() : nullptr;
            d_sum = nx || nr ? contribution_over(one, dy, extra) : Tensor();
            backward(d_sum, weight.node().get(), dy, extra, sum, weight.value(), inv_rms, offset);
          }
          if (!d_sum) return;
          if (nx) nx->add(d_sum);
          if (nr) nr->add(d_sum);
        });
  return out;
}

}  // namespace nemocube

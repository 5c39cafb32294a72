#include "ops/linear/linear.h"

#include "core/add.h"
#include "ops/contribute.h"
#include "ops/linear/linear_kernels.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_kernels.h"
#include "ops/reduce.h"

namespace nemocube {
namespace {

// Copies the bias to every row of y. The product is then added to it, and each element is rounded once.
void fill_rows(const Tensor& y, const Tensor& bias) {
  if (y.numel() > 0) fill_rows_kernel(y, bias);
}
}  // namespace

Tensor linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(x.ndim() >= 1, "linear: x: want a last dimension, got shape ", x.shape());
  require(weight.ndim() == 2 && weight.cols() == x.cols(), "linear: weight: want shape [out, ", x.cols(),
          "], got ", weight.shape());
  check_dtype("linear: weight", weight, x.dtype());
  Shape shape = x.shape();
  shape[shape.ndim() - 1] = weight.dim(0);
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if (bias) {
    check_shape("linear: bias", bias, {weight.dim(0)});
    check_dtype("linear: bias", bias, x.dtype());
    if (matmul_with_bias(y, x, weight, bias)) return y;
    fill_rows(y, bias);
  }
  matmul({y, bias ? Into::add : Into::set}, x, false, weight, true);
  return y;
}

void linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& weight) {
  matmul(dx, dy, false, weight, false);
}

void linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& x) {
  matmul(dweight, dy, true, x, false);
}

void linear_backward_bias(const Output& dbias, const Tensor& dy) { sum_rows(dbias, dy); }

Var linear(Context& ctx, const Var& x, const Var& weight, const Var& bias) {
  Var y =
      make_result(linear_forward(x.value(), weight.value(), bias.value()), ctx.records({&x, &weight, &bias}));
  if (!y.needs_grad()) return y;
  const Kept kept_x = weight.needs_grad() ? Kept(x) : Kept();
  const Tensor kept_weight = x.needs_grad() ? weight.value() : Tensor();
  ctx.tape->record("linear", [kept_x, kept_weight, nx = x.node(), nw = weight.node(), nb = bias.node(),
                              out = y.node(), tape = ctx.tape] {
    if (!out->filled()) return;
    const Tensor dy = out->take();
    contribute(nx, [&](const Output& dx) { linear_backward_input(dx, dy, kept_weight); });
    if (!nw && !nb) return;
    tape->weight_work([x = nw ? kept_x.get() : Tensor(), dy, nw, nb] {
      contribute(nw, [&](const Output& dw) { linear_backward_weight(dw, dy, x); });
      contribute(nb, [&](const Output& db) { linear_backward_bias(db, dy); });
    });
  });
  return y;
}

Var add_bias(Context& ctx, const Var& x, const Var& bias) {
  const Tensor &xv = x.value(), &b = bias.value();
  require(xv.ndim() >= 1, "add_bias: x: want a last dimension, got shape ", xv.shape());
  check_shape("add_bias: bias", b, {xv.cols()});
  check_dtype("add_bias: bias", b, xv.dtype());
  Var y = make_result(Tensor::empty(xv.shape(), xv.dtype(), xv.device()), ctx.records({&x, &bias}));
  fill_rows(y.value(), b);
  add_elements(y.value(), xv, y.value());
  if (y.needs_grad())
    ctx.tape->record("add_bias", [nx = x.node(), nb = bias.node(), out = y.node(), tape = ctx.tape] {
      if (!out->filled()) return;
      const Tensor dy = out->take();
      if (nb)
        tape->weight_work(
            [dy, nb] { contribute(nb, [&](const Output& db) { linear_backward_bias(db, dy); }); });
      if (nx) nx->add(dy);
    });
  return y;
}

}  // namespace nemocube

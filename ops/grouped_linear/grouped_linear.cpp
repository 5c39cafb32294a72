#include "ops/grouped_linear/grouped_linear.h"

#include "ops/contribute.h"
#include "ops/grouped_linear/grouped_linear_kernels.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

void check_offsets(const Tensor& offsets, std::int64_t groups) {
  check_dtype("grouped_linear: offsets", offsets, DType::i64);
  check_shape("grouped_linear: offsets", offsets, {groups + 1});
}

// The kernels of the CPU form their products by matmul, which counts them. For those of CUDA the host does not know how
// many rows the groups have: all count.
void count(const Tensor& rows, const Tensor& weight) {
  if (rows.device().is_cuda()) count_product(rows.dim(0), weight.dim(1), weight.dim(2));
}

}  // namespace

Tensor grouped_linear_forward(const Tensor& x, const Tensor& offsets, const Tensor& weight) {
  require(x.ndim() == 2, "grouped_linear: x: want shape [rows, in], got ", x.shape());
  require(weight.ndim() == 3 && weight.cols() == x.cols(), "grouped_linear: weight: want shape [E, out, ",
          x.cols(), "], got ", weight.shape());
  check_dtype("grouped_linear: weight", weight, x.dtype());
  check_offsets(offsets, weight.dim(0));
  const Tensor y = Tensor::empty({x.dim(0), weight.dim(1)}, x.dtype(), x.device());
  const ZoneTimer timer(matmul_zone());
  grouped_linear_forward_kernel(y, x, offsets, weight);
  count(x, weight);
  return y;
}

void grouped_linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets,
                                   const Tensor& weight) {
  check_offsets(offsets, weight.dim(0));
  const ZoneTimer timer(matmul_zone());
  grouped_linear_backward_input_kernel(dx, dy, offsets, weight);
  count(dy, weight);
}

void grouped_linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets,
                                    const Tensor& x) {
  check_offsets(offsets, dweight.to.dim(0));
  const ZoneTimer timer(matmul_zone());
  grouped_linear_backward_weight_kernel(dweight, dy, offsets, x);
  count(dy, dweight.to);
}

Var grouped_linear(Context& ctx, const Var& x, const Tensor& offsets, const Var& weight) {
  Var y = make_result(grouped_linear_forward(x.value(), offsets, weight.value()), ctx.records({&x, &weight}));
  if (!y.needs_grad()) return y;
  const Tensor kept_x = weight.needs_grad() ? x.value() : Tensor();
  const Tensor kept_weight = x.needs_grad() ? weight.value() : Tensor();
  ctx.tape->record("grouped_linear", [kept_x, kept_weight, offsets, nx = x.node(), nw = weight.node(),
                                      out = y.node(), tape = ctx.tape] {
    if (!out->filled()) return;
    const Tensor dy = out->take();
    contribute(nx, [&](const Output& dx) { grouped_linear_backward_input(dx, dy, offsets, kept_weight); });
    if (nw)
      tape->weight_work([kept_x, dy, offsets, nw] {
        contribute(nw, [&](const Output& dw) { grouped_linear_backward_weight(dw, dy, offsets, kept_x); });
      });
  });
  return y;
}

}  // namespace nemocube

#include "ops/grouped_linear/grouped_linear.h"

#include "core/variants.h"
#include "ops/contribute.h"
#include "ops/grouped_linear/grouped_linear_kernels.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

void check_offsets(const Tensor& offsets, std::int64_t groups) {
  check_dtype("grouped_linear: offsets", offsets, DType::i64);
  check_shape("grouped_linear: offsets", offsets, {groups + 1});
}

// The kernels of the CPU form their products by matmul, which counts them. For those of CUDA the host does
// not know how many rows the groups have: all count.
void count(const Tensor& rows, const Tensor& weight) {
  if (rows.device().is_cuda()) count_product(rows.dim(0), weight.dim(1), weight.dim(2));
}

enum class GroupedVariant { grouped, products };
const Variants<GroupedVariant> grouped_variants("grouped_linear", {{GroupedVariant::grouped, "grouped"},
                                                                   {GroupedVariant::products, "products"}});

/// Calls fn(group, first row, rows) for every group.
template <class Fn>
void for_groups(const Tensor& host_offsets, std::int64_t groups, std::int64_t rows, Fn&& fn) {
  check_offsets(host_offsets, groups);
  const std::int64_t* const at = host_offsets.data<std::int64_t>();
  for (std::int64_t e = 0; e < groups; ++e) {
    require(at[0] == 0 && at[e] <= at[e + 1] && at[e + 1] <= rows,
            "grouped_linear: offsets: want them to ascend from 0 to ", rows, ", got ", at[e], " and ",
            at[e + 1], " for group ", e);
    fn(e, at[e], at[e + 1] - at[e]);
  }
}

}  // namespace

Tensor grouped_linear_forward(const Tensor& x, const Tensor& offsets, const Tensor& weight,
                              const Tensor& host_offsets) {
  require(x.ndim() == 2, "grouped_linear: x: want shape [rows, in], got ", x.shape());
  require(weight.ndim() == 3 && weight.cols() == x.cols(), "grouped_linear: weight: want shape [E, out, ",
          x.cols(), "], got ", weight.shape());
  check_dtype("grouped_linear: weight", weight, x.dtype());
  const Tensor y = Tensor::empty({x.dim(0), weight.dim(1)}, x.dtype(), x.device());
  grouped_linear_forward_into({y, Into::set}, x, offsets, weight, host_offsets);
  return y;
}

void grouped_linear_forward_into(const Output& y, const Tensor& x, const Tensor& offsets,
                                 const Tensor& weight, const Tensor& host_offsets) {
  check_offsets(offsets, weight.dim(0));
  const ZoneTimer timer(matmul_zone());
  if (host_offsets)
    return for_groups(host_offsets, weight.dim(0), x.dim(0),
                      [&](std::int64_t e, std::int64_t first, std::int64_t n) {
                        matmul_untimed({y.to.narrow(0, first, n), y.how}, x.narrow(0, first, n), false,
                                       weight.select(e), true);
                      });
  grouped_linear_forward_kernel(y, x, offsets, weight);
  count(x, weight);
}

void grouped_linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets,
                                   const Tensor& weight, const Tensor& host_offsets) {
  check_offsets(offsets, weight.dim(0));
  const ZoneTimer timer(matmul_zone());
  if (host_offsets)
    return for_groups(host_offsets, weight.dim(0), dy.dim(0),
                      [&](std::int64_t e, std::int64_t first, std::int64_t n) {
                        matmul_untimed({dx.to.narrow(0, first, n), dx.how}, dy.narrow(0, first, n), false,
                                       weight.select(e), false);
                      });
  grouped_linear_backward_input_kernel(dx, dy, offsets, weight);
  count(dy, weight);
}

void grouped_linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets,
                                    const Tensor& x, const Tensor& host_offsets) {
  check_offsets(offsets, dweight.to.dim(0));
  const ZoneTimer timer(matmul_zone());
  if (host_offsets)  // without rows, matmul writes zeros or leaves what is there
    return for_groups(host_offsets, dweight.to.dim(0), x.dim(0),
                      [&](std::int64_t e, std::int64_t first, std::int64_t n) {
                        matmul_untimed({dweight.to.select(e), dweight.how}, dy.narrow(0, first, n), true,
                                       x.narrow(0, first, n), false);
                      });
  grouped_linear_backward_weight_kernel(dweight, dy, offsets, x);
  count(dy, dweight.to);
}

Tensor grouped_linear_host_offsets(const Context& ctx, const Tensor& offsets, const Tensor& host_offsets) {
  if (grouped_variants.chosen(ctx, offsets.device()) == GroupedVariant::grouped) return {};
  if (host_offsets) return host_offsets;
  require(offsets.device() == Device::cpu,
          "kernels.grouped_linear: 'products' wants the rows of each expert on the host, which knows them on "
          "the CPU and "
          "with experts on several ranks (dispatcher alltoall); here they are on ",
          offsets.device(), " alone");
  return offsets;
}

Var grouped_linear(Context& ctx, const Var& x, const Tensor& offsets, const Var& weight,
                   const Tensor& host_offsets) {
  const Tensor on_host = grouped_linear_host_offsets(ctx, offsets, host_offsets);
  Var y = make_result(grouped_linear_forward(x.value(), offsets, weight.value(), on_host),
                      ctx.records({&x, &weight}));
  if (!y.needs_grad()) return y;
  const Kept kept_x = weight.needs_grad() ? Kept(x) : Kept();
  const Tensor kept_weight = x.needs_grad() ? weight.value() : Tensor();
  ctx.tape->record("grouped_linear", [kept_x, kept_weight, offsets, on_host, nx = x.node(),
                                      nw = weight.node(), out = y.node(), tape = ctx.tape] {
    if (!out->filled()) return;
    const Tensor dy = out->take();
    contribute(
        nx, [&](const Output& dx) { grouped_linear_backward_input(dx, dy, offsets, kept_weight, on_host); });
    if (nw)
      tape->weight_work([x = kept_x.get(), dy, offsets, on_host, nw] {
        contribute(nw,
                   [&](const Output& dw) { grouped_linear_backward_weight(dw, dy, offsets, x, on_host); });
      });
  });
  return y;
}

}  // namespace nemocube

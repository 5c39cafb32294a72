#include "ops/grouped_linear/grouped_linear.h"
#include "ops/lora/lora.h"
#include "ops/lora/lora_products.h"
#include "ops/lora/lora_tape.h"

namespace nemocube {
namespace {

struct GroupedBranch {
  Tensor x, u, a, b;  // as in the contract, in the dtype of x
  double scale;
  Tensor offsets, host_offsets;

  /// A sum for each row, [R, r]. Zeros in rows beyond the last group, which no product writes: they are
  /// scaled, too.
  Tensor narrow_sums(std::int64_t rows, std::int64_t rank) const {
    return Tensor::zeros({rows, rank}, accumulate_dtype(b.dtype()), b.device());
  }
  void add_to(const Tensor& y) {
    const Tensor sums = narrow_sums(x.dim(0), a.dim(1));
    grouped_linear_forward_into({sums, Into::set}, x, offsets, a, host_offsets);
    u = scaled_narrow(sums, x.dtype(), scale);
    grouped_linear_forward_into({y, Into::add}, u, offsets, b, host_offsets);
  }
  Tensor gradient_of_u(const Tensor& g) const {
    const Tensor sums = narrow_sums(g.dim(0), b.dim(2));
    grouped_linear_backward_input({sums, Into::set}, g, offsets, b, host_offsets);
    return scaled_narrow(sums, g.dtype(), scale);
  }
  void add_dx(const std::shared_ptr<GradNode>& node, const Tensor& w) const {
    contribute(node,
               [&](const Output& dx) { grouped_linear_backward_input(dx, w, offsets, a, host_offsets); });
  }
  void form_da(const Output& da, const Tensor& w) const {
    grouped_linear_backward_weight(da, w, offsets, x, host_offsets);
  }
  void form_db(const Output& db, const Tensor& g) const {
    grouped_linear_backward_weight(db, g, offsets, u, host_offsets);
  }
};

}  // namespace

Var add_grouped_lora(Context& ctx, const Var& y, const Var& x, const Tensor& offsets, const Var& a,
                     const Var& b, double scale, const Tensor& host_offsets) {
  const Tensor &xv = x.value(), &av = a.value(), &bv = b.value();
  require(xv.ndim() == 2, "add_grouped_lora: x: want shape [rows, in], got ", xv.shape());
  require(is_float(xv.dtype()), "add_grouped_lora: x: want f32, f64 or bf16, got ", xv.dtype());
  check_adapter("add_grouped_lora: a", av, 3, xv.cols(), xv);
  check_adapter("add_grouped_lora: b", bv, 3, av.dim(1), xv);
  check_shape("add_grouped_lora: b", bv, {av.dim(0), bv.dim(1), av.dim(1)});
  check_lora_output("add_grouped_lora: y", y, {xv.dim(0), bv.dim(1)}, xv);
  require(offsets.defined(), "add_grouped_lora: offsets: got no tensor");
  require(offsets.device() == xv.device(), "add_grouped_lora: offsets: want a tensor on ", xv.device(),
          " like x, got one on ", offsets.device());
  GroupedBranch branch{.x = xv,
                       .u = {},
                       .a = av.to(xv.dtype()),
                       .b = bv.to(xv.dtype()),
                       .scale = scale,
                       .offsets = offsets,
                       .host_offsets = grouped_linear_host_offsets(ctx, offsets, host_offsets)};
  branch.add_to(y.value());
  return record_lora(ctx, "add_grouped_lora", y, x, a, b, std::move(branch));
}

}  // namespace nemocube

#pragma once
#include "ops/contribute.h"

/// The common part of add_lora() and add_grouped_lora(). Internal to this folder.
namespace nemocube {

/// Error unless `t` has `ndim` dimensions, `cols` columns, lies on the device of x, and has the dtype of x or
/// the f32 of an adapter for x of bf16.
void check_adapter(const std::string& what, const Tensor& t, int ndim, std::int64_t cols, const Tensor& x);
/// Error unless y has the shape, dtype and device of a product with x; std::logic_error for a leaf.
void check_lora_output(const char* what, const Var& y, const Shape& shape, const Tensor& x);

/// Records the backward pass of a branch that has been added to y, and returns the result. A Branch has the
/// tensors x, u, a and b, and
///     Tensor gradient_of_u(g)          w of ops/lora/lora.h
///     void add_dx(node of x, w)
///     void form_da(Output, w)
///     void form_db(Output, g)
template <class Branch>
Var record_lora(Context& ctx, const char* name, const Var& y, const Var& x, const Var& a, const Var& b,
                Branch branch) {
  if (!ctx.records({&x, &a, &b})) return y;
  // The gradient of the product and of the branch is one tensor. This closure runs before the product's
  // closure, which takes the tensor.
  const bool of_product = y.needs_grad();
  const Var result = of_product ? y : make_result(y.value(), true);
  // Rows that can be computed again are not kept.
  const bool again = a.needs_grad() && x.needs_grad() && x.node()->again;
  const Kept kept_x = again ? Kept(x) : Kept();
  if (!a.needs_grad() || again) branch.x = {};
  if (!b.needs_grad()) branch.u = {};
  if (!x.needs_grad()) branch.a = {};
  ctx.tape->record(name, [branch, again, kept_x, of_product, nx = x.node(), na = a.node(), nb = b.node(),
                          out = result.node(), tape = ctx.tape] {
    if (!out->filled()) return;
    const Tensor g = of_product ? out->grad() : out->take();
    const Tensor w = nx || na ? branch.gradient_of_u(g) : Tensor();
    if (nx) branch.add_dx(nx, w);
    if (!na && !nb) return;
    Branch whole = branch;
    if (again) {
      const Tensor rows = kept_x.get();
      whole.x = rows.reshape({rows.rows(), rows.cols()});
    }
    tape->weight_work([branch = std::move(whole), g = nb ? g : Tensor(), w = na ? w : Tensor(), na, nb] {
      contribute(na, [&](const Output& da) { branch.form_da(da, w); });
      contribute(nb, [&](const Output& db) { branch.form_db(db, g); });
    });
  });
  return result;
}

}  // namespace nemocube

#include "ops/lora/lora.h"

#include <algorithm>
#include <cmath>

#include "ops/lora/lora_branch.h"
#include "ops/lora/lora_products.h"
#include "ops/lora/lora_tape.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

Tensor as_matrix(const Tensor& t) { return t.reshape({t.rows(), t.cols()}); }

void check_numbers(const std::string& what, const Tensor& numbers, std::int64_t count, const Tensor& x) {
  require(numbers.defined(), what, ": want the numbers of ", count, ", got no tensor");
  check_dtype(what, numbers, DType::i64);
  check_shape(what, numbers, {count});
  require(numbers.device() == x.device(), what, ": want a tensor on ", x.device(), " like x, got one on ",
          numbers.device());
}

KeptElements kept_elements(const std::string& op, const LoraDropout& dropout, const Tensor& x,
                           std::int64_t out) {
  const double p = dropout.probability;
  require(p >= 0 && p < 1, op, ": dropout: want a probability of at least 0 and below 1, got ", p);
  if (p == 0) return {};
  require(dropout.stream.has_value(), op, ": dropout: want a random stream, got none");
  check_numbers(op + ": dropout: row numbers", dropout.row_numbers, x.rows(), x);
  if (dropout.column_numbers)
    check_numbers(op + ": dropout: column numbers", dropout.column_numbers,
                  dropout.position == DropoutPosition::pre ? x.cols() : out, x);
  return {.factor = 1 / (1 - p),
          .draws = RandomTable(*dropout.stream),
          .threshold = static_cast<std::uint32_t>(std::min(std::llround(p * 0x1p32), 0xffffffffLL)),
          .row_numbers = dropout.row_numbers,
          .column_numbers = dropout.column_numbers};
}

/// The branch, as record_lora() wants one.
struct DenseBranch : LoraRows {
  void add_dx(const std::shared_ptr<GradNode>& node, const Tensor& w) const {
    const Output place = contribution_place(*node);
    form_dx({as_matrix(place.to), place.how}, w);
    contribute_written(*node, place);
  }
  Tensor gradient_of_u(const Tensor& g) const { return LoraRows::gradient_of_u(as_matrix(g)); }
  void form_db(const Output& db, const Tensor& g) const { LoraRows::form_db(db, as_matrix(g)); }
};

}  // namespace

void check_adapter(const std::string& what, const Tensor& t, int ndim, std::int64_t cols, const Tensor& x) {
  require(t.defined(), what, ": got no tensor");
  require(t.ndim() == ndim && t.cols() == cols, what, ": want ", ndim, " dimensions and ", cols,
          " columns, got shape ", t.shape());
  if (t.dtype() != DType::f32 || x.dtype() != DType::bf16) check_dtype(what, t, x.dtype());
  require(t.device() == x.device(), what, ": want a tensor on ", x.device(), " like x, got one on ",
          t.device());
}

void check_lora_output(const char* what, const Var& y, const Shape& shape, const Tensor& x) {
  check_shape(what, y.value(), shape);
  check_dtype(what, y.value(), x.dtype());
  require(y.value().device() == x.device(), what, ": want a tensor on ", x.device(), " like x, got one on ",
          y.value().device());
  expect(!y.needs_grad() || !y.node()->leaf(), what, ": a leaf, to which nothing can be added in place");
}

LoraRows::LoraRows(const char* op, const Tensor& rows, const LoraBranch& branch)
    : scale(branch.scale), in_at_once(lora_rows_at_once(rows.cols())) {
  const Tensor &av = branch.a.value(), &bv = branch.b.value();
  require(rows.ndim() >= 1, op, ": x: want a last dimension, got shape ", rows.shape());
  require(is_float(rows.dtype()), op, ": x: want f32, f64 or bf16, got ", rows.dtype());
  check_adapter(cat(op, ": a"), av, 2, rows.cols(), rows);
  check_adapter(cat(op, ": b"), bv, 2, av.dim(0), rows);
  x = as_matrix(rows);
  a = av.to(rows.dtype());
  b = bv.to(rows.dtype());
  out_at_once = lora_rows_at_once(b.dim(0));
  (branch.dropout.position == DropoutPosition::pre ? kept_x : kept_y) =
      kept_elements(op, branch.dropout, rows, b.dim(0));
}

LoraRows LoraRows::of_rows(std::int64_t first, std::int64_t count) const {
  LoraRows part = *this;
  part.x = x.narrow(0, first, count);
  part.u = {};
  part.kept_x = kept_x.of_rows(first, count);
  part.kept_y = kept_y.of_rows(first, count);
  return part;
}

void LoraRows::add_to(const Tensor& y) {
  u = narrow_product(x, a, true, scale, kept_x, in_at_once);
  if (kept_y.all()) return matmul({y, Into::add}, u, false, b, true);
  wide_product({y, Into::add}, u, b, true, kept_y, out_at_once);
}
Tensor LoraRows::gradient_of_u(const Tensor& g) const {
  return narrow_product(g, b, false, scale, kept_y, out_at_once);
}
void LoraRows::form_dx(const Output& dx, const Tensor& w) const {
  wide_product(dx, w, a, false, kept_x, in_at_once);
}
void LoraRows::form_da(const Output& da, const Tensor& w) const {
  weight_product(da, w, x, false, kept_x, in_at_once);
}
void LoraRows::form_db(const Output& db, const Tensor& g) const {
  weight_product(db, u, g, true, kept_y, out_at_once);
}

void add_lora_values(const Tensor& y, const Tensor& x, const LoraBranch& branch) {
  LoraRows rows("add_lora_values", x, branch);
  rows.add_to(as_matrix(y));
}

Var add_lora(Context& ctx, const Var& y, const Var& x, const LoraBranch& adapter) {
  const Tensor& xv = x.value();
  DenseBranch branch{{"add_lora", xv, adapter}};
  Shape shape = xv.shape();
  shape[shape.ndim() - 1] = branch.b.dim(0);
  check_lora_output("add_lora: y", y, shape, xv);
  branch.add_to(as_matrix(y.value()));
  return record_lora(ctx, "add_lora", y, x, adapter.a, adapter.b, std::move(branch));
}

}  // namespace nemocube

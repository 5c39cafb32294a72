#include "ops/lora/lora.h"

#include <algorithm>
#include <cmath>

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

KeptElements kept_elements(const LoraDropout& dropout, const Tensor& x, std::int64_t out) {
  const double p = dropout.probability;
  require(p >= 0 && p < 1, "add_lora: dropout: want a probability of at least 0 and below 1, got ", p);
  if (p == 0) return {};
  require(dropout.stream.has_value(), "add_lora: dropout: want a random stream, got none");
  check_numbers("add_lora: dropout: row numbers", dropout.row_numbers, x.rows(), x);
  if (dropout.column_numbers)
    check_numbers("add_lora: dropout: column numbers", dropout.column_numbers,
                  dropout.position == DropoutPosition::pre ? x.cols() : out, x);
  return {.factor = 1 / (1 - p),
          .draws = RandomTable(*dropout.stream),
          .threshold = static_cast<std::uint32_t>(std::min(std::llround(p * 0x1p32), 0xffffffffLL)),
          .row_numbers = dropout.row_numbers,
          .column_numbers = dropout.column_numbers};
}

struct DenseBranch {
  Tensor x, u, a, b;  // x [T, in], the others as in the contract, in the dtype of x
  double scale;
  KeptElements kept_x, kept_y;
  std::int64_t in_at_once, out_at_once;  // rows of a chunk

  void add_to(const Tensor& y) {
    u = narrow_product(x, a, true, scale, kept_x, in_at_once);
    if (kept_y.all()) return matmul({y, Into::add}, u, false, b, true);
    wide_product({y, Into::add}, u, b, true, kept_y, out_at_once);
  }
  Tensor gradient_of_u(const Tensor& g) const {
    return narrow_product(as_matrix(g), b, false, scale, kept_y, out_at_once);
  }
  void add_dx(const std::shared_ptr<GradNode>& node, const Tensor& w) const {
    const Output place = contribution_place(*node);
    wide_product({as_matrix(place.to), place.how}, w, a, false, kept_x, in_at_once);
    contribute_written(*node, place);
  }
  void form_da(const Output& da, const Tensor& w) const {
    weight_product(da, w, x, false, kept_x, in_at_once);
  }
  void form_db(const Output& db, const Tensor& g) const {
    weight_product(db, u, as_matrix(g), true, kept_y, out_at_once);
  }
};

}  // namespace

void check_adapter(const char* what, const Tensor& t, int ndim, std::int64_t cols, const Tensor& x) {
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

Var add_lora(Context& ctx, const Var& y, const Var& x, const Var& a, const Var& b, double scale,
             const LoraDropout& dropout) {
  const Tensor &xv = x.value(), &av = a.value(), &bv = b.value();
  require(xv.ndim() >= 1, "add_lora: x: want a last dimension, got shape ", xv.shape());
  require(is_float(xv.dtype()), "add_lora: x: want f32, f64 or bf16, got ", xv.dtype());
  check_adapter("add_lora: a", av, 2, xv.cols(), xv);
  check_adapter("add_lora: b", bv, 2, av.dim(0), xv);
  const std::int64_t out = bv.dim(0);
  Shape shape = xv.shape();
  shape[shape.ndim() - 1] = out;
  check_lora_output("add_lora: y", y, shape, xv);
  const KeptElements kept = kept_elements(dropout, xv, out);
  const bool pre = dropout.position == DropoutPosition::pre;
  DenseBranch branch{.x = as_matrix(xv),
                     .u = {},
                     .a = av.to(xv.dtype()),
                     .b = bv.to(xv.dtype()),
                     .scale = scale,
                     .kept_x = pre ? kept : KeptElements(),
                     .kept_y = pre ? KeptElements() : kept,
                     .in_at_once = lora_rows_at_once(xv.cols()),
                     .out_at_once = lora_rows_at_once(out)};
  branch.add_to(as_matrix(y.value()));
  return record_lora(ctx, "add_lora", y, x, a, b, std::move(branch));
}

}  // namespace nemocube

#include "ops/view/view.h"

#include "core/add.h"

namespace nemocube {

std::vector<Var> split_last(Context& ctx, const Var& x, std::span<const std::int64_t> columns) {
  const std::vector<Tensor> parts = x.value().split_last(columns);
  std::vector<Var> result;
  if (!ctx.records({&x})) {
    for (const Tensor& part : parts) result.emplace_back(part);
    return result;
  }
  auto whole = std::make_shared<GradNode>(x.shape(), x.value().dtype(), x.value().device(), false);
  std::vector<std::shared_ptr<GradNode>> windows;
  std::int64_t start = 0;
  for (const Tensor& part : parts) {
    windows.push_back(std::make_shared<GradNode>(whole, part.shape(), start));
    result.emplace_back(part, windows.back());
    start += part.cols();
  }
  ctx.tape->record("split_last", [whole, windows, input = x.node()] {
    bool any = false;
    for (const auto& w : windows) any = any || w->filled();
    if (!any) return;
    for (const auto& w : windows)
      if (!w->filled()) w->buffer().zero();
    input->add(whole->take());
  });
  return result;
}

namespace {
/// Adds these columns of `gradient`, as many as the node has, to the gradient of the node.
void add_columns(GradNode* node, const Tensor& gradient, std::int64_t first) {
  if (!node) return;
  const Tensor part = Tensor::empty(node->shape(), gradient.dtype(), gradient.device());
  part.copy_from(gradient.narrow(-1, first, part.cols()));
  node->add(part);
}
}  // namespace

Var concat_last(Context& ctx, const Var& a, const Var& b) {
  check_dtype("concat_last: b", b.value(), a.value().dtype());
  require(a.value().rows() == b.value().rows(), "concat_last: a has ", a.value().rows(), " rows, b ",
          b.value().rows(), "; want as many");
  const std::int64_t left = a.value().cols(), right = b.value().cols();
  const Tensor both = Tensor::empty({a.value().rows(), left + right}, a.value().dtype(), a.value().device());
  both.narrow(1, 0, left).copy_from(a.value());
  both.narrow(1, left, right).copy_from(b.value());
  Var y = make_result(both, ctx.records({&a, &b}));
  if (y.needs_grad())
    ctx.tape->record("concat_last", [na = a.node(), nb = b.node(), out = y.node(), left] {
      if (!out->filled()) return;
      const Tensor g = out->take();
      add_columns(na.get(), g, 0);
      add_columns(nb.get(), g, left);
    });
  return y;
}

Var reshape(Context& ctx, const Var& x, const Shape& shape) {
  Var y = make_result(x.value().reshape(shape), ctx.records({&x}));
  if (!y.needs_grad()) return y;
  if (x.node()->again) y.node()->again = [again = x.node()->again, shape] { return again().reshape(shape); };
  ctx.tape->record("reshape", [in = x.node(), out = y.node()] {
    out->again = {};
    if (out->filled()) in->add(out->take().as_contiguous().reshape(in->shape()));
  });
  return y;
}

Var add(Context& ctx, const Var& a, const Var& b) {
  check_shape("add: b", b.value(), a.shape());
  check_dtype("add: b", b.value(), a.value().dtype());
  Var y = make_result(Tensor::empty(a.shape(), a.value().dtype(), a.value().device()), ctx.records({&a, &b}));
  add_elements(y.value(), a.value(), b.value());
  if (y.needs_grad())
    ctx.tape->record("add", [na = a.node(), nb = b.node(), out = y.node()] {
      if (!out->filled()) return;
      const Tensor g = out->take();
      if (na) na->add(g);
      if (nb) nb->add(g);
    });
  return y;
}

}  // namespace nemocube

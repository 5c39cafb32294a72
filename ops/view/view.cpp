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

Var reshape(Context& ctx, const Var& x, const Shape& shape) {
  Var y = make_result(x.value().reshape(shape), ctx.records({&x}));
  if (y.needs_grad())
    ctx.tape->record("reshape", [in = x.node(), out = y.node()] {
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

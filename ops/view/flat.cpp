#include "ops/view/flat.h"

#include <algorithm>

namespace nemocube {

Var pack(Context& ctx, std::span<const Var> tensors) {
  require(!tensors.empty(), "pack: want at least one tensor");
  const Tensor& first = tensors.front().value();
  std::int64_t size = 0;
  bool wants = false;
  for (const Var& tensor : tensors) {
    require(tensor.value().dtype() == first.dtype() && tensor.value().device() == first.device(),
            "pack: want tensors alike in dtype and device, got ", first.dtype(), " and ",
            tensor.value().dtype());
    size += tensor.value().numel();
    wants = wants || ctx.records({&tensor});
  }
  Var y = make_result(Tensor::empty({size}, first.dtype(), first.device()), wants);
  std::int64_t at = 0;
  std::vector<std::shared_ptr<GradNode>> nodes;
  for (const Var& tensor : tensors) {
    const std::int64_t n = tensor.value().numel();
    y.value().narrow(0, at, n).reshape(tensor.shape()).copy_from(tensor.value());
    nodes.push_back(tensor.node());
    at += n;
  }
  if (!wants) return y;
  std::vector<Shape> shapes;
  for (const Var& tensor : tensors) shapes.push_back(tensor.shape());
  ctx.tape->record("pack", [out = y.node(), nodes = std::move(nodes), shapes = std::move(shapes)] {
    if (!out->filled()) return;
    const Tensor gradient = out->take();
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::int64_t n = shapes[i].numel();
      if (nodes[i]) nodes[i]->add(gradient.narrow(0, begin, n).reshape(shapes[i]));
      begin += n;
    }
  });
  return y;
}

std::vector<Var> unpack(Context& ctx, const Var& x, std::span<const Shape> shapes) {
  std::int64_t size = 0;
  for (const Shape& shape : shapes) size += shape.numel();
  require(x.value().ndim() == 1 && x.value().numel() == size, "unpack: want ", size, " numbers, got ",
          x.value().shape());
  const bool wants = ctx.records({&x});
  std::vector<Var> parts;
  std::vector<std::shared_ptr<GradNode>> nodes;
  std::int64_t at = 0;
  for (const Shape& shape : shapes) {
    parts.push_back(make_result(x.value().narrow(0, at, shape.numel()).reshape(shape), wants));
    nodes.push_back(parts.back().node());
    at += shape.numel();
  }
  if (!wants) return parts;
  ctx.tape->record("unpack", [in = x.node(), nodes = std::move(nodes)] {
    if (std::ranges::none_of(nodes, &GradNode::filled)) return;
    const Tensor gradient = in->buffer();
    std::int64_t begin = 0;
    for (const auto& node : nodes) {
      const std::int64_t n = node->shape().numel();
      const Tensor range = gradient.narrow(0, begin, n).reshape(node->shape());
      if (node->filled())
        range.copy_from(node->take());
      else
        range.zero();
      begin += n;
    }
    in->add(gradient);
  });
  return parts;
}

}  // namespace nemocube

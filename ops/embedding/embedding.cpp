#include "ops/embedding/embedding.h"

#include <algorithm>
#include <cstring>

#include "core/parallel_for.h"
#include "core/profile.h"

namespace nemocube {
namespace {

void check_ids(const Tensor& ids, std::int64_t vocabulary) {
  if (ids.numel() == 0) return;
  const auto* id = ids.data<std::int64_t>();
  for (std::int64_t t = 0; t < ids.numel(); ++t)
    require(id[t] >= 0 && id[t] < vocabulary, "embedding: id ", id[t], " at position ", t,
            " is outside the vocabulary [0, ", vocabulary, ")");
}

void gather_rows(const Tensor& y, const Tensor& ids, const Tensor& weight) {
  if (y.numel() == 0) return;
  const auto* id = ids.data<std::int64_t>();
  const std::int64_t element = size_of(weight.dtype());
  const std::int64_t width = y.cols() * element, stride = weight.row_stride() * element;
  auto* to = static_cast<std::byte*>(y.raw());
  const auto* from = static_cast<const std::byte*>(weight.raw());
  parallel_for(y.rows(), 1 + 65536 / width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      std::memcpy(to + t * width, from + id[t] * stride, static_cast<std::size_t>(width));
  });
}

// Threads own column ranges, so that each element is summed by one thread in token order.
template <class To, class From>
void scatter_add(const Tensor& to, const Tensor& ids, const Tensor& dy) {
  const auto* id = ids.data<std::int64_t>();
  constexpr std::int64_t line = 64 / sizeof(To);
  const std::int64_t cols = dy.cols(), lines = (cols + line - 1) / line;
  parallel_for(lines, 1 + 16384 / (line * dy.rows()), [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * line, end = std::min(last * line, cols);
    for (std::int64_t t = 0; t < dy.rows(); ++t) {
      To* __restrict sum = to.row<To>(id[t]);
      const From* __restrict g = dy.row<From>(t);
      for (std::int64_t c = begin; c < end; ++c) sum[c] += static_cast<To>(g[c]);
    }
  });
}

void embedding_backward(const Grad& dweight, const Tensor& ids, const Tensor& dy) {
  if (dweight.how == Into::set) dweight.to.zero();
  if (dy.numel() == 0) return;
  visit_float("embedding", dy.dtype(), [&](auto tag) {
    using From = typename decltype(tag)::type;
    scatter_add<acc_t<From>, From>(dweight.to, ids, dy);
  });
}

}  // namespace

Var embedding(Context& ctx, const Tensor& ids, const Var& weight) {
  check_dtype("embedding: ids", ids, DType::i64);
  require(ids.ndim() == 1, "embedding: ids: want shape [T], got ", ids.shape());
  const Tensor& table = weight.value();
  require(table.defined() && table.ndim() == 2, "embedding: weight: want shape [V, h], got ", table.shape());
  require(is_float(table.dtype()), "embedding: weight: want f32, f64 or bf16, got ", table.dtype());
  check_ids(ids, table.dim(0));

  static Zone forward_zone("embedding/forward");
  const ZoneTimer timer(forward_zone);
  Var y = make_result(Tensor::empty({ids.numel(), table.cols()}, table.dtype()), ctx.records({&weight}));
  gather_rows(y.value(), ids, table);
  if (y.needs_grad())
    ctx.tape->record("embedding", [ids, dtype = table.dtype(), in = weight.node(), out = y.node()] {
      if (!out->filled()) return;
      static Zone backward_zone("embedding/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      if (in->leaf()) return embedding_backward(in->into(), ids, dy);
      const Tensor dweight = Tensor::empty(in->shape(), accumulate_dtype(dtype));
      embedding_backward({dweight, Into::set}, ids, dy);
      in->add(dweight.to(dtype));
    });
  return y;
}

}  // namespace nemocube

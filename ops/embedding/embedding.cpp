#include "ops/embedding/embedding.h"

#include <cmath>

#include "core/profile.h"
#include "ops/embedding/embedding_kernels.h"

namespace nemocube {
Var embedding(Context& ctx, const Tensor& ids, const Var& weight, const VocabularyPart& part, double scale) {
  check_dtype("embedding: ids", ids, DType::i64);
  require(ids.ndim() == 1, "embedding: ids: want shape [T], got ", ids.shape());
  const Tensor& table = weight.value();
  require(table.defined() && table.ndim() == 2, "embedding: weight: want shape [V, h], got ", table.shape());
  require(is_float(table.dtype()), "embedding: weight: want f32, f64 or bf16, got ", table.dtype());
  require(std::isfinite(scale), "embedding: scale: want a finite number, got ", scale);

  static Zone forward_zone("embedding/forward");
  const ZoneTimer timer(forward_zone);
  Var y = make_result(Tensor::empty({ids.numel(), table.cols()}, table.dtype(), table.device()),
                      ctx.records({&weight}));
  embedding_forward(y.value(), ids, part.begin, table, scale);
  if (y.needs_grad())
    ctx.tape->record("embedding", [ids, begin = part.begin, scale, dtype = table.dtype(), in = weight.node(),
                                   out = y.node()] {
      if (!out->filled()) return;
      static Zone backward_zone("embedding/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      if (in->leaf()) return embedding_backward(in->into(), ids, begin, dy, scale);
      const Tensor dweight = Tensor::empty(in->shape(), accumulate_dtype(dtype), in->device());
      embedding_backward({dweight, Into::set}, ids, begin, dy, scale);
      in->add(dweight.to(dtype));
    });
  return y;
}

}  // namespace nemocube

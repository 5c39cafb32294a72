#include "ops/cross_entropy/cross_entropy.h"

#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace nemocube {

RowStatistics row_statistics(const Tensor& logits, const Tensor& labels, const VocabularyPart& part) {
  const DType dtype = accumulate_dtype(logits.dtype());
  const RowStatistics s{Tensor::empty({logits.rows()}, dtype, logits.device()),
                        Tensor::empty({logits.rows(), 2}, dtype, logits.device())};
  if (logits.rows() == 0) return s;
  column_statistics(s, logits, labels, part.begin);
  if (!part.reduction) return s;
  const Tensor own_max = s.max.clone();
  part.reduction->max(s.max);
  rescale_sums(s, own_max);
  part.reduction->sum(s.sums);
  return s;
}

Var cross_entropy(Context& ctx, const Var& logits, const Labels& labels, const GradScale& grad_scale,
                  const VocabularyPart& part) {
  const char* op = "cross_entropy";
  const Tensor& z = logits.value();
  require(z.ndim() >= 1, op, ": logits: want shape [..., V], got ", z.shape());
  require(is_float(z.dtype()), op, ": logits: want f32, f64 or bf16, got ", z.dtype());
  check_shape(cat(op, ": labels"), labels.values, {z.rows()});
  const RowStatistics statistics = row_statistics(z, labels.values, part);
  const Tensor losses = Tensor::empty({z.rows()}, DType::f64, z.device());
  const Tensor sum = Tensor::empty({}, accumulate_dtype(z.dtype()), z.device());
  row_losses(losses, statistics, labels.values);
  sum_losses(sum, losses);
  Var loss = make_result(sum, ctx.records({&logits}));
  if (loss.needs_grad())
    ctx.tape->record(op, [z, statistics, targets = labels.values, grad_scale, begin = part.begin,
                          in = logits.node(), out = loss.node()] {
      if (!out->filled()) return;
      const Tensor dz = Tensor::empty(z.shape(), z.dtype(), z.device());
      softmax_gradient(dz, z, statistics, targets, begin, out->take(), grad_scale);
      in->add(dz);
    });
  return loss;
}

}  // namespace nemocube

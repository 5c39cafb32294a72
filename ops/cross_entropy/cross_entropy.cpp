#include "ops/cross_entropy/cross_entropy.h"

#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace nemocube {

namespace {

/// A cut vocabulary costs two messages, one for each member of the result; none when there are no rows.
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

}  // namespace

void form_losses(const Tensor& losses, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                 const GradScale& scale, const VocabularyPart& part) {
  if (dlogits && !part.reduction) return softmax_losses_and_gradient(dlogits, losses, logits, labels, scale);
  const RowStatistics statistics = row_statistics(logits, labels, part);
  row_losses(losses, statistics, labels);
  if (dlogits) softmax_gradient(dlogits, logits, statistics, labels, part.begin, scale);
}

Var cross_entropy(Context& ctx, const Var& logits, const Labels& labels, const GradScale& grad_scale,
                  const VocabularyPart& part) {
  const char* op = "cross_entropy";
  const Tensor& z = logits.value();
  require(z.ndim() >= 1, op, ": logits: want shape [..., V], got ", z.shape());
  require(is_float(z.dtype()), op, ": logits: want f32, f64 or bf16, got ", z.dtype());
  check_shape(cat(op, ": labels"), labels.values, {z.rows()});
  const Tensor losses = Tensor::empty({z.rows()}, DType::f64, z.device());
  const Tensor sum = Tensor::empty({}, accumulate_dtype(z.dtype()), z.device());
  Var loss = make_result(sum, ctx.records({&logits}));
  const Tensor dz = loss.needs_grad() ? Tensor::empty(z.shape(), z.dtype(), z.device()) : Tensor();
  form_losses(losses, dz, z, labels.values, grad_scale, part);
  sum_losses(sum, losses);
  if (loss.needs_grad())
    ctx.tape->record(op, [dz, in = logits.node(), out = loss.node()] {
      if (!out->filled()) return;
      scale_gradient(dz, out->take());
      in->add(dz);
    });
  return loss;
}

}  // namespace nemocube

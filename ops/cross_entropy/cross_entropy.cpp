#include "ops/cross_entropy/cross_entropy.h"

#include <cmath>

#include "ops/contribute.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/reduce.h"

namespace nemocube {

namespace {

/// A cut vocabulary costs two messages, one for each member of the result; none when there are no rows.
RowStatistics row_statistics(const Tensor& logits, const Tensor& labels, const VocabularyPart& part,
                             const LogitShape& shape) {
  const DType dtype = accumulate_dtype(logits.dtype());
  const RowStatistics s{Tensor::empty({logits.rows()}, dtype, logits.device()),
                        Tensor::empty({logits.rows(), 2}, dtype, logits.device())};
  if (logits.rows() == 0) return s;
  column_statistics(s, logits, labels, part.begin, shape);
  if (!part.reduction) return s;
  const Tensor own_max = s.max.clone();
  part.reduction->max(s.max);
  rescale_sums(s, own_max);
  part.reduction->sum(s.sums);
  return s;
}

/// first_of_max() over all ranks.
Tensor first_of_all(const Tensor& logits, const RowStatistics& statistics, const Tensor& labels,
                    const VocabularyPart& part, const LogitShape& shape) {
  const Tensor first = Tensor::empty({logits.rows()}, DType::f64, logits.device());
  if (logits.rows() == 0) return first;
  first_of_max(first, logits, statistics, labels, part.begin, shape);
  if (part.reduction) part.reduction->max(first);
  return first;
}

}  // namespace

void check_logit_options(const char* op, const LogitOptions& options, std::int64_t tokens, DType dtype) {
  if (options.bias.defined()) {
    check_shape(cat(op, ": bias"), options.bias.value(), {tokens});
    check_dtype(cat(op, ": bias"), options.bias.value(), dtype);
  }
  require(options.soft_cap >= 0 && std::isfinite(options.soft_cap), op,
          ": soft_cap: want a finite number >= 0, got ", options.soft_cap);
  require(options.z_loss_weight >= 0 && std::isfinite(options.z_loss_weight), op,
          ": z_loss_weight: want a finite number >= 0, got ", options.z_loss_weight);
}

LogitShape logit_shape(const LogitOptions& options) {
  const Tensor& bias = options.bias.value();
  return {bias ? bias.to(accumulate_dtype(bias.dtype())) : bias, options.soft_cap, options.z_loss_weight};
}

void shape_logits(const Tensor& logits, const LogitOptions& options) {
  require(is_float(logits.dtype()), "shape_logits: logits: want f32, f64 or bf16, got ", logits.dtype());
  check_logit_options("shape_logits", options, logits.cols(),
                      options.bias.defined() ? options.bias.value().dtype() : logits.dtype());
  LogitShape shape = logit_shape(options);
  if (shape.bias) shape.bias = shape.bias.to(accumulate_dtype(logits.dtype()));
  if (!shape.plain() && logits.numel() > 0) shape_logits_kernel(logits, shape);
}

void form_losses(const Tensor& losses, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                 const GradScale& scale, const VocabularyPart& part, const LogitShape& shape,
                 const Tensor& without_z) {
  const bool z_loss = shape.z_loss_weight != 0;
  const auto weigh = [&] {
    if (scale.rows && losses.numel() > 0) weigh_losses(losses, scale.rows);
  };
  if (dlogits && !part.reduction && !z_loss) {
    softmax_losses_and_gradient(dlogits, losses, logits, labels, scale, shape);
    if (without_z) without_z.copy_from(losses);
    return weigh();
  }
  const RowStatistics statistics = row_statistics(logits, labels, part, shape);
  row_losses(losses, statistics, labels);
  if (without_z) without_z.copy_from(losses);
  const Tensor first = z_loss && dlogits ? first_of_all(logits, statistics, labels, part, shape) : Tensor();
  if (dlogits) softmax_gradient(dlogits, logits, statistics, labels, part.begin, scale, shape);
  if (z_loss) add_z_loss(losses, dlogits, statistics, first, labels, part.begin, scale, shape);
  weigh();
}

GradScale with_weights(GradScale scale, const Tensor& weights) {
  scale.rows = weights;
  return scale;
}

Var cross_entropy(Context& ctx, const Var& logits, const Labels& labels, const GradScale& grad_scale,
                  const VocabularyPart& part, const LogitOptions& options) {
  const char* op = "cross_entropy";
  const Tensor& z = logits.value();
  require(z.ndim() >= 1, op, ": logits: want shape [..., V], got ", z.shape());
  require(is_float(z.dtype()), op, ": logits: want f32, f64 or bf16, got ", z.dtype());
  check_shape(cat(op, ": labels"), labels.values, {z.rows()});
  check_logit_options(op, options, z.cols(), z.dtype());
  const Tensor losses = Tensor::empty({z.rows()}, DType::f64, z.device());
  const Tensor sum = Tensor::empty({}, accumulate_dtype(z.dtype()), z.device());
  Var loss = make_result(sum, ctx.records({&logits, &options.bias}));
  const Tensor dz = loss.needs_grad() ? Tensor::empty(z.shape(), z.dtype(), z.device()) : Tensor();
  form_losses(losses, dz, z, labels.values, with_weights(grad_scale, labels.weights), part,
              logit_shape(options));
  sum_losses(sum, losses);
  if (loss.needs_grad())
    ctx.tape->record(op, [dz, in = logits.node(), bias = options.bias.node(), out = loss.node()] {
      if (!out->filled()) return;
      scale_gradient(dz, out->take());
      contribute(bias, [&](const Output& db) { sum_rows(db, dz); });
      if (in) in->add(dz);
    });
  return loss;
}

}  // namespace nemocube

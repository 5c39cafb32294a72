#include "ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <numeric>

#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace nemocube {

std::int64_t count_labels(const Tensor& labels) {
  check_dtype("count_labels", labels, DType::i64);
  require(labels.contiguous(), "count_labels: want contiguous labels");
  if (labels.numel() == 0) return 0;
  const auto* values = labels.data<std::int64_t>();
  return labels.numel() - std::count(values, values + labels.numel(), ignored_label);
}

Var cross_entropy(Context& ctx, const Var& logits, const Tensor& labels, double grad_scale,
                  const VocabularyPart& part) {
  const char* op = "cross_entropy";
  const Tensor& z = logits.value();
  require(z.ndim() >= 1, op, ": logits: want shape [..., V], got ", z.shape());
  const std::int64_t vocabulary = part.tokens(z.cols()), own = part.own_tokens(z.cols());
  const auto values = cpu::checked_labels(op, labels, z.rows(), vocabulary);
  const cpu::RowStatistics statistics = cpu::row_statistics(z.narrow(-1, 0, own), values, part);
  std::vector<double> losses(values.size());
  cpu::row_losses(losses, statistics, values);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  Var loss =
      make_result(Tensor::scalar(sum, accumulate_dtype(z.dtype()), z.device()), ctx.records({&logits}));
  if (loss.needs_grad())
    ctx.tape->record(op, [z, statistics, labels, grad_scale, op, vocabulary, own, begin = part.begin,
                          in = logits.node(), out = loss.node()] {
      if (!out->filled()) return;
      const double dloss = out->take().to_vector().front();
      const Tensor dz = Tensor::empty(z.shape(), z.dtype(), z.device());
      const auto again = cpu::checked_labels(op, labels, z.rows(), vocabulary);
      cpu::softmax_gradient(dz.narrow(-1, 0, own), z.narrow(-1, 0, own), statistics, again, begin,
                            dloss * grad_scale);
      dz.narrow(-1, own, z.cols() - own).zero();
      in->add(dz);
    });
  return loss;
}

}  // namespace nemocube

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

Var cross_entropy(Context& ctx, const Var& logits, const Tensor& labels, double grad_scale) {
  const Tensor& z = logits.value();
  require(z.ndim() >= 1, "cross_entropy: logits: want shape [..., V], got ", z.shape());
  const auto values = cpu::checked_labels("cross_entropy", labels, z.rows(), z.cols());
  const Tensor lse = Tensor::empty({z.rows()}, accumulate_dtype(z.dtype()));
  std::vector<double> losses(values.size());
  cpu::softmax_losses(lse, losses, z, values);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  Var loss = make_result(Tensor::scalar(sum, lse.dtype()), ctx.records({&logits}));
  if (loss.needs_grad())
    ctx.tape->record("cross_entropy", [z, lse, labels, grad_scale, in = logits.node(), out = loss.node()] {
      if (!out->filled()) return;
      const double dloss = out->take().to_vector().front();
      const Tensor dz = Tensor::empty(z.shape(), z.dtype());
      const auto again = cpu::checked_labels("cross_entropy", labels, z.rows(), z.cols());
      cpu::softmax_gradient(dz, z, lse, again, dloss * grad_scale);
      in->add(dz);
    });
  return loss;
}

}  // namespace nemocube

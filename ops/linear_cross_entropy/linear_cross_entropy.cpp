#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/parallel_for.h"
#include "core/variants.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

enum class CrossEntropyVariant { fused, plain };
const Variants<CrossEntropyVariant> cross_entropy_variants("cross_entropy",
                                                           {{CrossEntropyVariant::fused, "fused"},
                                                            {CrossEntropyVariant::plain, "plain"}});

// Gathered rows are padded with zeros to a multiple of this. The number of labelled rows changes from batch
// to batch; with padding, oneDNN prepares products of few different sizes.
constexpr std::int64_t padding = 32;

/// The labelled rows of x and their labels.
struct Labelled {
  std::vector<std::int64_t> rows;    // positions in x
  std::vector<std::int64_t> labels;  // without -100
  Tensor x;                          // [at least rows, in]; x itself when every row is labelled
  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
};

template <class Fn>
void copy_rows(std::int64_t count, std::int64_t row_bytes, Fn&& ends) {
  parallel_for(count, 1 + 65536 / (row_bytes + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto [to, from] = ends(i);
      std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
    }
  });
}

std::byte* row_of(const Tensor& t, std::int64_t r) {
  return t.host_bytes() + r * t.row_stride() * size_of(t.dtype());
}

Labelled gather(const Tensor& x, std::span<const std::int64_t> labels) {
  Labelled found;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] == ignored_label) continue;
    found.rows.push_back(static_cast<std::int64_t>(t));
    found.labels.push_back(labels[t]);
  }
  const std::int64_t n = found.count();
  if (n == x.rows()) {
    found.x = x;
    return found;
  }
  const std::int64_t padded = (n + padding - 1) / padding * padding;
  found.x = Tensor::empty({padded, x.cols()}, x.dtype(), x.device());
  if (x.cols() == 0) return found;
  copy_rows(n, x.cols() * size_of(x.dtype()), [&](std::int64_t i) {
    return std::pair(row_of(found.x, i), row_of(x, found.rows[static_cast<std::size_t>(i)]));
  });
  found.x.narrow(0, n, padded - n).zero();
  return found;
}

// The gradient of x from the gradient of the labelled rows of x.
Tensor scatter(const Tensor& part, const std::vector<std::int64_t>& rows, const Shape& shape) {
  if (part.rows() == static_cast<std::int64_t>(rows.size()) && part.numel() == shape.numel())
    return part.reshape(shape);
  const Tensor whole = Tensor::zeros(shape, part.dtype(), part.device());
  if (part.cols() == 0) return whole;
  copy_rows(static_cast<std::int64_t>(rows.size()), part.cols() * size_of(part.dtype()), [&](std::int64_t i) {
    return std::pair(row_of(whole, rows[static_cast<std::size_t>(i)]), row_of(part, i));
  });
  return whole;
}

Tensor as_rows(const Tensor& x) { return x.ndim() == 2 ? x : x.reshape({x.rows(), x.cols()}); }

/// Loss of the labelled rows, chunk by chunk. Forms the gradients dx and dw that are defined.
double run_chunks(const Labelled& in, const Tensor& weight, const Tensor& dx, Output dw, double grad_scale,
                  std::int64_t chunk_rows, const VocabularyPart& part) {
  const DType acc = accumulate_dtype(weight.dtype());
  const std::int64_t rows = in.x.dim(0), most = std::min(chunk_rows, rows), vocabulary = weight.dim(0);
  const bool backward = dx.defined() || dw.to.defined();
  const Tensor all_logits = Tensor::empty({most, vocabulary}, acc, weight.device());
  const Tensor all_grads = weight.dtype() == acc || !backward
                               ? all_logits
                               : Tensor::empty({most, vocabulary}, weight.dtype(), weight.device());
  std::vector<double> losses(in.labels.size());
  if (rows == 0 && dw.to.defined() && dw.how == Into::set) dw.to.zero();
  for (std::int64_t at = 0; at < rows; at += chunk_rows) {
    const std::int64_t length = std::min(chunk_rows, rows - at);
    const std::int64_t real = std::clamp<std::int64_t>(in.count() - at, 0, length);
    const Tensor x = in.x.narrow(0, at, length), logits = all_logits.narrow(0, 0, length);
    const auto begin = static_cast<std::size_t>(std::min(at, in.count())),
               size = static_cast<std::size_t>(real);
    const auto labels = std::span(in.labels).subspan(begin, size);
    const auto chunk_losses = std::span(losses).subspan(begin, size);
    matmul({logits, Into::set}, x, false, weight, true);
    const Tensor real_logits = logits.narrow(0, 0, real);
    const Tensor grads = all_grads.narrow(0, 0, length), real_grads = grads.narrow(0, 0, real);
    if (backward && !part.reduction) {
      cpu::softmax_losses_and_gradient(real_grads, chunk_losses, real_logits, labels, grad_scale);
    } else {
      const cpu::RowStatistics statistics = cpu::row_statistics(real_logits, labels, part);
      cpu::row_losses(chunk_losses, statistics, labels);
      if (!backward) continue;
      cpu::softmax_gradient(real_grads, real_logits, statistics, labels, part.begin, grad_scale);
    }
    grads.narrow(0, real, length - real).zero();
    if (dw.to.defined()) matmul(dw, grads, true, x, false);
    dw.how = Into::add;
    if (dx.defined()) matmul({dx.narrow(0, at, length), Into::set}, grads, false, weight, false);
  }
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

Var fused(Context& ctx, const Var& x, const Var& weight, const Tensor& labels, double grad_scale,
          std::int64_t chunk_rows, const VocabularyPart& part) {
  const char* op = "linear_cross_entropy";
  const Tensor &xv = x.value(), &w = weight.value();
  require(xv.ndim() >= 1, op, ": x: want shape [..., in], got ", xv.shape());
  require(w.ndim() == 2 && w.cols() == xv.cols(), op, ": weight: want shape [V, ", xv.cols(), "], got ",
          w.shape());
  check_dtype("linear_cross_entropy: weight", w, xv.dtype());
  const Labelled in = gather(as_rows(xv), cpu::checked_labels(op, labels, xv.rows(), part.tokens(w.dim(0))));

  const bool wants = ctx.records({&x, &weight});
  Tensor dx;
  Output dw;
  if (wants && x.needs_grad()) dx = Tensor::empty(in.x.shape(), xv.dtype(), xv.device());
  if (wants && weight.needs_grad())
    dw = weight.node()->leaf()
             ? weight.node()->into()
             : Output{Tensor::empty(w.shape(), accumulate_dtype(w.dtype()), w.device()), Into::set};
  // Padding joins no product.
  const std::int64_t own = part.own_tokens(w.dim(0));
  Output own_dw = dw;
  if (dw.to.defined()) {
    own_dw.to = dw.to.narrow(0, 0, own);
    if (dw.how == Into::set) dw.to.narrow(0, own, w.dim(0) - own).zero();
  }
  const double sum = run_chunks(in, w.narrow(0, 0, own), dx, own_dw, grad_scale, chunk_rows, part);
  Var loss = make_result(Tensor::scalar(sum, accumulate_dtype(xv.dtype()), xv.device()), wants);
  if (!wants) return loss;
  const Tensor dweight = weight.needs_grad() && !weight.node()->leaf() ? dw.to : Tensor();
  ctx.tape->record(op, [dx, dweight, dtype = w.dtype(), rows = in.rows, nx = x.node(), nw = weight.node(),
                        out = loss.node()] {
    expect(out->filled() && out->take().to_vector().front() == 1.0,
           "linear_cross_entropy: the gradient of the loss must be 1; scale it by grad_scale");
    if (dweight.defined()) nw->add(dweight.to(dtype));
    if (nx) nx->add(scatter(dx, rows, nx->shape()));
  });
  return loss;
}

}  // namespace

Var linear_cross_entropy(Context& ctx, const Var& x, const Var& weight, const Tensor& labels,
                         double grad_scale, std::int64_t chunk_rows, const VocabularyPart& part) {
  require(chunk_rows >= 1, "linear_cross_entropy: chunk_rows: want at least 1, got ", chunk_rows);
  if (cross_entropy_variants.chosen(ctx, x.value().device()) == CrossEntropyVariant::plain)
    return cross_entropy(ctx, linear(ctx, x, weight), labels, grad_scale, part);
  return fused(ctx, x, weight, labels, grad_scale, chunk_rows, part);
}

}  // namespace nemocube

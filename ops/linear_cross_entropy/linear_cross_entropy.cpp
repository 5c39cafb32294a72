#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "core/variants.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora_branch.h"
#include "ops/matmul/matmul.h"
#include "ops/reduce.h"

namespace nemocube {
namespace {

enum class CrossEntropyVariant { fused, plain };
const Variants<CrossEntropyVariant> cross_entropy_variants("cross_entropy",
                                                           {{CrossEntropyVariant::fused, "fused"},
                                                            {CrossEntropyVariant::plain, "plain"}});

/// The labelled rows of x and their labels.
struct Labelled {
  Tensor x;  // [at least count, in]: zeros follow the labelled rows; x itself when every row may be labelled
  Tensor labels;   // [count]
  Tensor weights;  // [count]; undefined: 1
};

Labelled gather(const Tensor& x, const Labels& labels) {
  const std::int64_t n = labels.count();
  if (n == x.rows()) return {x, labels.values, labels.weights};
  const Tensor found = Tensor::empty({product_rows(labels.rows), x.cols()}, x.dtype(), x.device());
  gather_labelled(found, x, labels.rows);
  return {found, labels.targets, labels.target_weights};
}

// The gradient of x from the gradient of the labelled rows of x.
Tensor scatter(const Tensor& part, const Tensor& rows, const Shape& shape) {
  if (part.rows() == rows.numel() && part.numel() == shape.numel()) return part.reshape(shape);
  const Tensor whole = Tensor::empty(shape, part.dtype(), part.device());
  scatter_labelled(whole, part, rows);
  return whole;
}

/// Losses of the rows that gather() has chosen, in the order of labels.rows. They have another order where
/// x itself was chosen for a list with places that are left.
Tensor in_order_of_list(const Tensor& losses, const Labels& labels) {
  if (labels.count() != labels.values.numel()) return losses;
  const Tensor listed = Tensor::empty({labels.count(), 1}, losses.dtype(), losses.device());
  gather_labelled(listed, losses.reshape({losses.numel(), 1}), labels.rows);
  return listed.reshape({labels.count()});
}

/// The branch on the gathered rows.
LoraRows gather(const LoraBranch& adapter, const Tensor& rows, const Labels& labels) {
  LoraBranch of_rows = adapter;
  if (const Tensor& numbers = adapter.dropout.row_numbers; numbers && numbers.numel() != labels.count()) {
    const Tensor found = Tensor::empty({rows.dim(0), 1}, DType::i64, numbers.device());
    gather_labelled(found, numbers.reshape({numbers.numel(), 1}), labels.rows);
    of_rows.dropout.row_numbers = found.reshape({rows.dim(0)});
  }
  return {"linear_cross_entropy", rows, of_rows};
}

Tensor as_rows(const Tensor& x) { return x.ndim() == 2 ? x : x.reshape({x.rows(), x.cols()}); }

/// Logits [rows, vocabulary]. On CUDA every row starts at a multiple of 16 bytes, for any vocabulary.
Tensor empty_logits(std::int64_t rows, std::int64_t vocabulary, DType dtype, Device device) {
  const std::int64_t stride = device.is_cuda() ? (vocabulary + 7) / 8 * 8 : vocabulary;
  return Tensor::empty({rows, stride}, dtype, device).narrow(-1, 0, vocabulary);
}

/// What the chunks form: those that are defined.
struct Gradients {
  Tensor dx;
  Output dw, dbias, da, db;
  bool any() const { return dx || dw.to || dbias.to || da.to || db.to; }
};

/// Adds what a chunk contributes; `first`: there has been none before.
void add_chunk(const Output& sum, bool first, const std::function<void(const Output&)>& form) {
  if (sum.to) form({sum.to, first ? sum.how : Into::add});
}

/// Losses of the labelled rows, chunk by chunk, and their gradients. `without_z`, where it is defined, gets
/// the losses without the z loss.
Tensor run_chunks(const Labelled& in, const Tensor& weight, const std::optional<LoraRows>& adapter,
                  const Gradients& to, const GradScale& grad_scale, std::int64_t chunk_rows,
                  const VocabularyPart& part, const LogitShape& shape, const Tensor& without_z) {
  const DType acc = accumulate_dtype(weight.dtype());
  const std::int64_t rows = in.x.dim(0), count = in.labels.dim(0), most = std::min(chunk_rows, rows),
                     vocabulary = weight.dim(0);
  const bool backward = to.any();
  const Tensor all_logits = empty_logits(most, vocabulary, acc, weight.device());
  const Tensor all_grads = weight.dtype() == acc || !backward
                               ? all_logits
                               : empty_logits(most, vocabulary, weight.dtype(), weight.device());
  const Tensor all_losses = Tensor::empty({count}, DType::f64, weight.device());
  if (rows == 0)
    for (const Output& sum : {to.dw, to.dbias, to.da, to.db})
      if (sum.to && sum.how == Into::set) sum.to.zero();
  for (std::int64_t at = 0; at < rows; at += chunk_rows) {
    const std::int64_t length = std::min(chunk_rows, rows - at);
    const std::int64_t begin = std::min(at, count), real = std::min(length, count - begin);
    const Tensor x = in.x.narrow(0, at, length), logits = all_logits.narrow(0, 0, length);
    const Tensor labels = in.labels.narrow(0, begin, real), losses = all_losses.narrow(0, begin, real);
    matmul({logits, Into::set}, x, false, weight, true);
    std::optional<LoraRows> branch;
    if (adapter) branch.emplace(adapter->of_rows(at, length)).add_to(logits);
    const Tensor real_logits = logits.narrow(0, 0, real);
    const Tensor grads = all_grads.narrow(0, 0, length), real_grads = grads.narrow(0, 0, real);
    const GradScale scale =
        with_weights(grad_scale, in.weights ? in.weights.narrow(0, begin, real) : Tensor());
    form_losses(losses, backward ? real_grads : Tensor(), real_logits, labels, scale, part, shape,
                without_z ? without_z.narrow(0, begin, real) : Tensor());
    if (!backward) continue;
    grads.narrow(0, real, length - real).zero();
    const bool first = at == 0;
    add_chunk(to.dw, first, [&](const Output& dw) { matmul(dw, grads, true, x, false); });
    add_chunk(to.dbias, first, [&](const Output& dbias) { sum_rows(dbias, real_grads); });
    const Tensor dx = to.dx ? to.dx.narrow(0, at, length) : Tensor();
    if (dx) matmul({dx, Into::set}, grads, false, weight, false);
    if (!branch) continue;
    add_chunk(to.db, first, [&](const Output& db) { branch->form_db(db, grads); });
    if (!dx && !to.da.to) continue;
    const Tensor w = branch->gradient_of_u(grads);
    add_chunk(to.da, first, [&](const Output& da) { branch->form_da(da, w); });
    if (dx) branch->form_dx({dx, Into::add}, w);
  }
  return all_losses;
}

/// Where the gradient of a weight is formed: a leaf's own, else a sum of its own.
Output gradient_place(const Var& weight) {
  if (!weight.needs_grad()) return {};
  const Tensor& w = weight.value();
  return weight.node()->leaf()
             ? weight.node()->into()
             : Output{Tensor::empty(w.shape(), accumulate_dtype(w.dtype()), w.device()), Into::set};
}

Var fused(Context& ctx, const Var& x, const Var& weight, const Labels& labels, const GradScale& grad_scale,
          std::int64_t chunk_rows, const VocabularyPart& part, const LoraBranch* adapter,
          const LogitOptions& options, Tensor* token_losses) {
  const char* op = "linear_cross_entropy";
  const Tensor &xv = x.value(), &w = weight.value();
  require(xv.ndim() >= 1, op, ": x: want shape [..., in], got ", xv.shape());
  require(w.ndim() == 2 && w.cols() == xv.cols(), op, ": weight: want shape [V, ", xv.cols(), "], got ",
          w.shape());
  check_dtype("linear_cross_entropy: weight", w, xv.dtype());
  check_shape("linear_cross_entropy: labels", labels.values, {xv.rows()});
  check_logit_options(op, options, w.dim(0), xv.dtype());
  const Labelled in = gather(as_rows(xv), labels);

  std::optional<LoraRows> branch;
  if (adapter) {
    branch.emplace(gather(*adapter, in.x, labels));
    require(branch->b.dim(0) == w.dim(0), op, ": b: want ", w.dim(0), " rows like the weight, got ",
            branch->b.dim(0));
  }
  const Var a = adapter ? adapter->a : Var(), b = adapter ? adapter->b : Var();
  const bool wants = ctx.records({&x, &weight, &options.bias, &a, &b});
  Gradients to;
  if (wants) {
    if (x.needs_grad()) to.dx = Tensor::empty(in.x.shape(), xv.dtype(), xv.device());
    to.dw = gradient_place(weight);
    to.dbias = gradient_place(options.bias);
    to.da = gradient_place(a);
    to.db = gradient_place(b);
  }
  const LogitShape shape = logit_shape(options);
  const Tensor without_z = token_losses && (shape.z_loss_weight != 0 || in.weights)
                               ? Tensor::empty({labels.count()}, DType::f64, xv.device())
                               : Tensor();
  const Tensor losses = run_chunks(in, w, branch, to, grad_scale, chunk_rows, part, shape, without_z);
  if (token_losses) *token_losses = in_order_of_list(without_z ? without_z : losses, labels);
  const Tensor sum = Tensor::empty({}, accumulate_dtype(xv.dtype()), xv.device());
  sum_losses(sum, losses);
  Var loss = make_result(sum, wants);
  if (!wants) return loss;
  struct Pending {
    std::shared_ptr<GradNode> node;
    Tensor gradient;
    DType dtype;
  };
  std::vector<Pending> pending;  // gradients of what is no leaf
  for (const auto& [var, place] :
       {std::pair(&weight, to.dw), {&options.bias, to.dbias}, {&a, to.da}, {&b, to.db}})
    if (place.to && !var->node()->leaf()) pending.push_back({var->node(), place.to, var->value().dtype()});
  ctx.tape->record(op, [dx = to.dx, pending, rows = labels.rows, nx = x.node(), out = loss.node()] {
    expect(out->filled(), "linear_cross_entropy: no gradient of the loss arrives, but it is in use already");
    out->take();
    for (const auto& [node, gradient, dtype] : pending) node->add(gradient.to(dtype));
    if (nx) nx->add(scatter(dx, rows, nx->shape()));
  });
  return loss;
}

}  // namespace

Var linear_cross_entropy(Context& ctx, const Var& x, const Var& weight, const Labels& labels,
                         const GradScale& grad_scale, std::int64_t chunk_rows, const VocabularyPart& part,
                         const LoraBranch* adapter, const LogitOptions& options, Tensor* token_losses) {
  require(chunk_rows >= 1, "linear_cross_entropy: chunk_rows: want at least 1, got ", chunk_rows);
  if (cross_entropy_variants.chosen(ctx, x.value().device()) == CrossEntropyVariant::plain && !token_losses)
    return cross_entropy(
        ctx, adapter ? add_lora(ctx, linear(ctx, x, weight), x, *adapter) : linear(ctx, x, weight), labels,
        grad_scale, part, options);
  return fused(ctx, x, weight, labels, grad_scale, chunk_rows, part, adapter, options, token_losses);
}

}  // namespace nemocube

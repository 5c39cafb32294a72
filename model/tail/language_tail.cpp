#include "model/tail/language_tail.h"

#include "core/allocation_owner.h"
#include "core/trace.h"
#include "ops/l2_normalize/l2_normalize.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/scale_columns/scale_columns.h"

namespace nemocube {

LanguageTail::LanguageTail(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points)
    : norm_(setup.config, parameters, final_norm_name()),
      head_(&parameters.get(setup.config.head_module() / "weight")),
      bias_(parameters.find(head_name() / "bias")),
      normalized_(setup.config.normalized_head),
      scale_(setup.config.logit_scale),
      soft_cap_(setup.config.logit_softcap),
      z_loss_weight_(setup.config.z_loss_weight) {
  if (Adapter adapter(setup, parameters, head_name()); adapter) adapter_.emplace(std::move(adapter));
  points.emplace(head_name() / "input", TransformPoint{&input_, PointRole::way_in, setup.config.head_module(),
                                                       adapter_ ? adapter_->rows() : nullptr});
}

Var LanguageTail::weight(Context& ctx) const {
  return normalized_ ? l2_normalize(ctx, head_->var()) : head_->var();
}

LogitOptions LanguageTail::options() const {
  return {bias_ ? bias_->var() : Var(), soft_cap_, z_loss_weight_};
}

Tensor LanguageTail::logits(const Tensor& hidden) const {
  Context ctx;
  const Tensor rows = scale(ctx, hidden, scale_).value(), head = weight(ctx).value();
  const Tensor out = Tensor::empty({rows.rows(), head.dim(0)}, accumulate_dtype(head.dtype()), rows.device());
  matmul({out, Into::set}, rows, false, head, true);
  if (adapter_) add_lora_values(out, rows, adapter_->branch());
  shape_logits(out, options());
  return out;
}

Var LanguageTail::loss(Context& ctx, const Var& hidden, const Labels& labels, const Sequences& sequences,
                       const GradScale& grad_scale, std::int64_t chunk_rows, Tensor* token_losses) const {
  const AllocationOwner owner("loss");
  const trace::Span span(trace::Category::forward, "loss");
  const Var rows = apply(input_, ctx, scale(ctx, hidden, scale_), sequences);
  const LoraBranch adapter = adapter_ ? adapter_->branch(sequences, rows.value().device()) : LoraBranch();
  return linear_cross_entropy(ctx, rows, weight(ctx), labels, grad_scale, chunk_rows, part,
                              adapter_ ? &adapter : nullptr, options(), token_losses);
}

}  // namespace nemocube

#include "model/mixers/moe.h"

#include "ops/grouped_linear/grouped_linear.h"
#include "ops/permute/permute.h"
#include "ops/relu2/relu2.h"
#include "ops/view/view.h"

namespace nemocube {

MoeMixer::MoeMixer(const NemotronHConfig& config, ParameterStore& store, const std::string& name)
    : gate_(&store.get(name + ".gate.weight")),
      bias_(&store.get(name + ".gate.e_score_correction_bias")),
      up_(&store.get(name + ".experts.up_proj")),
      down_(&store.get(name + ".experts.down_proj")),
      shared_(store, name + ".shared_experts") {
  router_.experts = config.n_routed_experts;
  router_.top_k = config.num_experts_per_tok;
  router_.groups = config.n_group;
  router_.top_groups = config.topk_group;
  router_.normalise = config.norm_topk_prob;
  router_.scaling = config.routed_scaling_factor;
  if (config.moe_latent_size > 0) {
    fc1_latent_.emplace(store, name + ".fc1_latent_proj");
    fc2_latent_.emplace(store, name + ".fc2_latent_proj");
  }
  counts_ = Tensor::zeros({config.n_routed_experts}, DType::i64);
}

void MoeMixer::reset_counts() {
  counts_.zero();
  totals_ = {};
  aux_losses_ = {};
}

Var MoeMixer::forward(Context& ctx, const Var& x, const Sequences& sequences, MixerState* state) {
  RouterTotals* totals = ctx.training ? &totals_ : nullptr;
  const Routing routing = route(ctx, x, gate_->var(), bias_->value, router_, sequences, totals);
  // A forward that is computed again in backward must not count its tokens twice.
  if (ctx.training && !ctx.recomputing) {
    for (std::int64_t e = 0; e < router_.experts; ++e)
      counts_.data<std::int64_t>()[e] += routing.counts.data<std::int64_t>()[e];
    aux_losses_.aux += routing.aux_loss;
    aux_losses_.seq_aux += routing.seq_aux_loss;
    aux_losses_.global_aux += routing.global_aux_loss;
    aux_losses_.z += routing.z_loss;
  }
  const Permutation order = make_permutation(routing.experts, router_.experts);
  const Var rows = permute(ctx, fc1_latent_ ? (*fc1_latent_)(ctx, x) : x, order);
  const Var hidden = relu2(ctx, grouped_linear(ctx, rows, order.offsets, up_->var()));
  const Var out = grouped_linear(ctx, hidden, order.offsets, down_->var());
  Var y = unpermute(ctx, out, routing.weights, order);
  if (fc2_latent_) y = (*fc2_latent_)(ctx, y);
  return add(ctx, y, shared_.forward(ctx, x, sequences, state));
}

}  // namespace nemocube

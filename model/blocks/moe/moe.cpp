#include "model/blocks/moe/moe.h"

#include <cmath>

#include "ops/expert_scale/expert_scale.h"
#include "ops/gated_activation/gated_activation.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/lora/lora.h"
#include "ops/relu2/relu2.h"
#include "ops/row_gate/row_gate.h"
#include "ops/scale_columns/scale_columns.h"
#include "ops/view/view.h"

namespace nemocube {

MoeMixer::MoeMixer(const MixerSources& sources, const TensorName& name)
    : activation_(sources.config.moe.gate),
      gate_(&sources.parameters.get(name / "gate.weight")),
      bias_(sources.parameters.find(name / "gate.e_score_correction_bias")),
      in_(&sources.parameters.get(name / sources.config.moe.experts_in())),
      down_(&sources.parameters.get(name / "experts.down_proj")),
      in_adapter_(sources.setup, sources.parameters, name / sources.config.moe.experts_in()),
      down_adapter_(sources.setup, sources.parameters, name / "experts.down_proj"),
      dispatcher_(std::make_unique<LocalDispatcher>()) {
  const MoeConfig& moe = sources.config.moe;
  if (moe.has_shared_expert()) {
    MlpConfig shared;
    shared.gate = moe.gate;
    shared_.emplace(sources, name / "shared_experts", shared);
    if (moe.shared_expert_gate) shared_gate_.emplace(sources, name / "shared_expert_gate");
  }
  const TensorName entry = name / (shared_ ? "shared_experts.up_proj" : "gate");
  sources.points.emplace(name / "routed.input", TransformPoint{&routed_input_, PointRole::routed_in, entry,
                                                               nullptr, sources.way_in()});
  sources.points.emplace(name / "routed.output", TransformPoint{&routed_output_, PointRole::routed_out, entry,
                                                                nullptr, sources.way_out()});
  sources.points.emplace(name / "experts.output", TransformPoint{&experts_output_, PointRole::experts_out});
  router_.experts = moe.n_routed_experts;
  router_.top_k = moe.num_experts_per_tok;
  router_.scores = moe.scores;
  router_.groups = moe.n_group;
  router_.top_groups = moe.topk_group;
  router_.normalise = moe.norm_topk_prob;
  router_.scaling = moe.routed_scaling_factor;
  if (moe.own_norms) {
    const double eps = sources.config.layer_norm_epsilon;
    const auto norm = [&](const char* member) {
      return Norm(NormKind::rmsnorm, eps, sources.parameters, name / member);
    };
    norms_.emplace(norm("experts_norm"), norm("experts_post_norm"), norm("shared_norm"),
                   norm("shared_post_norm"), &sources.parameters.get(name / "gate.scale"),
                   &sources.parameters.get(name / "gate.per_expert_scale"), eps,
                   1 / std::sqrt(static_cast<double>(sources.config.hidden_size)));
  }
  if (moe.latent_size > 0) {
    fc1_latent_.emplace(sources, name / "fc1_latent_proj");
    fc2_latent_.emplace(sources, name / "fc2_latent_proj");
  }
}

std::unique_ptr<MixerRecord> MoeMixer::make_record() const {
  return std::make_unique<MoeRecord>(router_.experts);
}

Routing MoeMixer::choose_experts(Context& ctx, const Var& x, const MixerCall& call) {
  auto* record = static_cast<MoeRecord*>(call.record);
  const bool replay = record && record->choice;
  const Var read =
      norms_ ? scale(ctx, rmsnorm(ctx, x, norms_->router_scale->var(), norms_->eps), norms_->hidden_factor)
             : x;
  Routing routing =
      route(ctx, read, gate_->var(), bias_ ? bias_->value : Tensor(), router_,
            rows_ ? rows_(call.sequences) : call.sequences, record ? &totals_ : nullptr,
            replay ? &*record->choice : nullptr, record && !replay ? record->sums : RouterSums());
  if (record && !replay) {
    record->choice = routing.choice;
    record->sums = {routing.counts, routing.losses};
  }
  if (norms_)
    routing.weights =
        expert_scale(ctx, std::move(routing.weights), routing.choice.experts, norms_->expert_scale->var());
  return routing;
}

Var MoeMixer::through_shared(Context& ctx, const Var& x, const MixerCall& call) {
  const Var in = norms_ ? norms_->shared(ctx, x) : x;
  Var y = shared_->forward(ctx, in, call);
  if (shared_gate_) y = row_gate(ctx, std::move(y), (*shared_gate_)(ctx, in, call.sequences));
  return norms_ ? norms_->shared_post(ctx, y) : y;
}

Var MoeMixer::through_experts(Context& ctx, const Var& rows, const DispatchedRows& sent,
                              const Parameter& weight, const Adapter& adapter) {
  const Var y = grouped_linear(ctx, rows, sent.offsets, weight.var(), sent.host_offsets);
  if (!adapter) return y;
  const LoraBranch branch = adapter.branch();
  return add_grouped_lora(ctx, y, rows, sent.offsets, branch.a, branch.b, branch.scale, sent.host_offsets);
}

Var MoeMixer::activate(Context& ctx, Var inner) const {
  return activation_ ? gated_activation(ctx, std::move(inner), *activation_) : relu2(ctx, std::move(inner));
}

Var MoeMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const Var in = apply(routed_input_, ctx, x, sequences);
  const Routing routing = choose_experts(ctx, in, call);
  Tensor unrecorded;
  auto* record = static_cast<MoeRecord*>(call.record);
  const Var normed = norms_ ? norms_->experts(ctx, in) : in;
  const DispatchedRows sent =
      dispatcher_->dispatch(ctx, fc1_latent_ ? (*fc1_latent_)(ctx, normed, sequences) : normed, routing,
                            router_.experts, record ? record->host : unrecorded);
  Var shared;
  if (shared_) shared = through_shared(ctx, x, call);  // while the rows are on their way
  const Var rows = sent.receive(ctx);
  const Var hidden = activate(ctx, through_experts(ctx, rows, sent, *in_, in_adapter_));
  const Var results = through_experts(ctx, hidden, sent, *down_, down_adapter_);
  Var y = sent.combine(ctx, apply(experts_output_, ctx, results, sequences));
  if (fc2_latent_) y = (*fc2_latent_)(ctx, y, sequences);
  y = apply(routed_output_, ctx, y, sequences);
  if (norms_) y = norms_->experts_post(ctx, y);
  return shared_ ? add(ctx, y, shared) : y;
}

}  // namespace nemocube

#include "model/blocks/moe/moe.h"

#include "ops/grouped_linear/grouped_linear.h"
#include "ops/lora/lora.h"
#include "ops/relu2/relu2.h"
#include "ops/view/view.h"

namespace nemocube {

MoeMixer::MoeMixer(const MixerSources& sources, const TensorName& name)
    : gate_(&sources.parameters.get(name / "gate.weight")),
      bias_(&sources.parameters.get(name / "gate.e_score_correction_bias")),
      up_(&sources.parameters.get(name / "experts.up_proj")),
      down_(&sources.parameters.get(name / "experts.down_proj")),
      up_adapter_(sources.setup, sources.parameters, name / "experts.up_proj"),
      down_adapter_(sources.setup, sources.parameters, name / "experts.down_proj"),
      shared_(sources, name / "shared_experts", MlpConfig{}),
      dispatcher_(std::make_unique<LocalDispatcher>()) {
  const TensorName entry = name / "shared_experts.up_proj";
  sources.points.emplace(name / "routed.input", TransformPoint{&routed_input_, PointRole::routed_in, entry,
                                                               nullptr, sources.way_in()});
  sources.points.emplace(name / "routed.output", TransformPoint{&routed_output_, PointRole::routed_out, entry,
                                                                nullptr, sources.way_out()});
  sources.points.emplace(name / "experts.output", TransformPoint{&experts_output_, PointRole::experts_out});
  const BlockConfig& config = sources.config;
  router_.experts = config.moe.n_routed_experts;
  router_.top_k = config.moe.num_experts_per_tok;
  router_.groups = config.moe.n_group;
  router_.top_groups = config.moe.topk_group;
  router_.normalise = config.moe.norm_topk_prob;
  router_.scaling = config.moe.routed_scaling_factor;
  if (config.moe.latent_size > 0) {
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
  Routing routing =
      route(ctx, x, gate_->var(), bias_->value, router_, rows_ ? rows_(call.sequences) : call.sequences,
            record ? &totals_ : nullptr, replay ? &*record->choice : nullptr,
            record && !replay ? record->sums : RouterSums());
  if (record && !replay) {
    record->choice = routing.choice;
    record->sums = {routing.counts, routing.losses};
  }
  return routing;
}

Var MoeMixer::through_experts(Context& ctx, const Var& rows, const DispatchedRows& sent,
                              const Parameter& weight, const Adapter& adapter) {
  const Var y = grouped_linear(ctx, rows, sent.offsets, weight.var(), sent.host_offsets);
  if (!adapter) return y;
  const LoraBranch branch = adapter.branch();
  return add_grouped_lora(ctx, y, rows, sent.offsets, branch.a, branch.b, branch.scale, sent.host_offsets);
}

Var MoeMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const Var in = apply(routed_input_, ctx, x, sequences);
  const Routing routing = choose_experts(ctx, in, call);
  Tensor unrecorded;
  auto* record = static_cast<MoeRecord*>(call.record);
  const DispatchedRows sent =
      dispatcher_->dispatch(ctx, fc1_latent_ ? (*fc1_latent_)(ctx, in, sequences) : in, routing,
                            router_.experts, record ? record->host : unrecorded);
  const Var shared = shared_.forward(ctx, x, call);  // while the rows are on their way
  const Var rows = sent.receive(ctx);
  const Var hidden = relu2(ctx, through_experts(ctx, rows, sent, *up_, up_adapter_));
  const Var results = through_experts(ctx, hidden, sent, *down_, down_adapter_);
  Var y = sent.combine(ctx, apply(experts_output_, ctx, results, sequences));
  if (fc2_latent_) y = (*fc2_latent_)(ctx, y, sequences);
  return add(ctx, apply(routed_output_, ctx, y, sequences), shared);
}

}  // namespace nemocube

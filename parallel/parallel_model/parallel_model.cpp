#include "parallel/parallel_model/parallel_model.h"

#include <algorithm>

#include "parallel/comm/together.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/tensor_parallel/cuts.h"
#include "parallel/tensor_parallel/install.h"

namespace nemocube {
namespace {

TensorCuts cuts_of(const ParallelPlan& plan, const ModelSetup& setup) {
  return {setup, TensorParallelPlan(setup, plan.sequence_parallel, plan.tensor_rules), plan.grid};
}

/// The elements of [0, count) that are not in `ranges`.
std::vector<Range> others(const std::vector<Range>& ranges, std::int64_t count) {
  std::vector<Range> gaps;
  std::int64_t at = 0;
  for (const Range& r : ranges) {
    if (at < r.begin) gaps.push_back({at, r.begin});
    at = r.end;
  }
  if (at < count) gaps.push_back({at, count});
  return gaps;
}

Program program_of(const Schedule& schedule, std::int64_t rank) {
  return make_programs(schedule, simulate(schedule)).at(static_cast<std::size_t>(rank));
}

}  // namespace

ModelPart part_of(const ParallelPlan& plan, const ModelSetup& setup, const GridPlace& place) {
  return {plan.pipeline.chunks_of(place.pp),
          [cuts = cuts_of(plan, setup), place](const TensorSpec& spec) { return cuts(spec, place).shard; },
          copies_embeddings(plan, setup)};
}

/// What lives as long as the transforms of the model.
struct ParallelModel::Installed {
  std::unique_ptr<TensorParallel> tensor;
  std::unique_ptr<ContextParallel> context;
};

ParallelModel::ParallelModel(Stack& model, const ParallelPlan& plan, const ProcessGroups& groups,
                             Device device)
    : model_(model),
      plan_(plan),
      groups_(groups),
      place_(place_of(plan.grid, plan.grid.first_rank + groups.all().rank())),
      installed_(std::make_unique<Installed>()),
      forward_program_(program_of(plan.pipeline.forward_schedule(plan.grid.pp), place_.pp)),
      transfers_(groups[Group::pp], plan.pipeline.rank_of_stage) {
  const TensorCuts cuts = cuts_of(plan, model.setup());
  std::map<TensorName, TensorCut> cut_of;
  for (const TensorSpec& spec : tensor_specs(model.setup()))
    if (model.part().has(spec.id)) cut_of.emplace(spec.id, cuts(spec, place_));
  if (const auto embeddings = cut_of.find(embeddings_name() / "weight");
      embeddings != cut_of.end() && copies_embeddings(plan, model.setup()))
    embeddings->second = with_copy_at_end(std::move(embeddings->second), place_);
  for (Parameter& p : model.parameters().all()) {
    const TensorCut& cut = cut_of.at(p.id);
    p.counts = !cut.counted.empty();
    if (p.counts) p.counted_elsewhere = others(cut.counted, p.value.numel());
  }
  installed_->context = std::make_unique<ContextParallel>(model, groups[Group::cp], plan.context_attention);
  installed_->tensor = std::make_unique<TensorParallel>(
      model, cuts.plan(), groups,
      plan.grid.cp == 1 ? RowCut()
                        : [c = installed_->context.get()](const Sequences& whole) { return c->own(whole); });
  for (MoeMixer* moe : model.moe_layers()) {
    const ExpertGroups experts(groups[Group::ep], groups[Group::expt_tp], groups[Group::tp_ep]);
    moe->set_dispatcher(make_dispatcher(plan.dispatcher, moe->router().experts, experts));
    if (Communicator& devices = groups[Group::tp_dp_cp]; devices.size() > 1)
      moe->sum_totals_over_devices([&devices](const Tensor& t) { devices.all_reduce(t); });
    if (Communicator& peers = groups[Group::tp_cp]; peers.size() > 1)
      moe->router().sum_over_peers = [&peers](const Tensor& t) { peers.all_reduce(t); };
  }
  data_ = std::make_unique<DataParallel>(model, groups, plan.data, device, [&](const Parameter& p) {
    const TensorCut& cut = cut_of.at(p.id);
    Communicator* parts = cut.sum ? &groups[*cut.sum] : nullptr;
    return GradientSource{cut.expert, parts, cut.summed};
  });
}

namespace {

ParallelPlan plan_of_one_rank() {
  ParallelPlan plan;
  plan.data.level = ZeroLevel::none;
  return plan;
}

}  // namespace

ParallelModel::ParallelModel(Stack& model)
    : ParallelModel(model, plan_of_one_rank(), std::make_unique<const ProcessGroups>()) {}

ParallelModel::ParallelModel(Stack& model, const ParallelPlan& plan, std::unique_ptr<const ProcessGroups> own)
    : ParallelModel(model, plan, *own, model.device()) {
  own_groups_ = std::move(own);
}

ParallelModel::~ParallelModel() = default;

bool ParallelModel::independent_replicas() const {
  const GridSizes& g = plan_.grid;
  return g.tp * g.cp * g.pp * g.ep * g.expt_tp == 1;
}

std::int64_t ParallelModel::largest(std::int64_t value) const { return nemocube::largest(&all(), value); }

void ParallelModel::sum(std::span<std::int64_t> values) const { all().host_all_reduce(values); }

double ParallelModel::sum(double value) const { return all().host_all_reduce(value); }

Tensor ParallelModel::own_tokens(const Tensor& per_token, const Sequences& whole) const {
  return installed_->context->own_tokens(per_token, whole);
}

std::int64_t ParallelModel::residual_rows(const Sequences& whole) const {
  return installed_->tensor->residual_rows(whole);
}

Tensor ParallelModel::room(const Transfer& transfer, const Sequences& whole) const {
  // What this rank receives: the input of the stage behind the sender's, or the gradient of the output of the
  // stage before that.
  const bool input = transfer.payload == Transfer::Payload::activation;
  const SideBoundary& boundary = input ? model_.boundary_before(chunk_of(transfer.stage + 1))
                                       : model_.boundary_behind(chunk_of(transfer.stage - 1));
  const std::int64_t rows = residual_rows(whole);
  if (boundary.rows.empty())
    return Tensor::empty({rows, boundary.hidden_size}, model_.dtype(), model_.device());
  const std::int64_t all = installed_->tensor->rows_of_group(whole).tokens();
  return Tensor::empty({boundary.numel(rows, all)}, model_.dtype(), model_.device());
}

const Program& ParallelModel::program(std::int64_t microbatches) {
  auto found = programs_.find(microbatches);
  if (found == programs_.end()) {
    const Schedule schedule = plan_.pipeline.schedule(plan_.grid.pp, microbatches);
    found = programs_.emplace(microbatches, program_of(schedule, place_.pp)).first;
  }
  return found->second;
}

std::size_t ParallelModel::chunk_of(std::int64_t stage) const {
  const auto own = plan_.pipeline.stages_of(place_.pp);
  const auto found = std::ranges::find(own, stage);
  expect(found != own.end(), "stage ", stage, " is not on pipeline rank ", place_.pp);
  return static_cast<std::size_t>(found - own.begin());
}

Var ParallelModel::hidden(Context& ctx, const Tensor& ids, const Sequences& sequences, DecodeState* state) {
  const ContextParallel::Whole whole(state ? installed_->context.get() : nullptr);
  Var out;
  for (const ProgramItem& item : forward_program_) {
    if (const auto* exchange = std::get_if<Exchange>(&item)) {
      transfers_.exchange(*exchange, [&](const Transfer& t) { return room(t, sequences); });
      continue;
    }
    const auto& [kind, stage, microbatch] = std::get<Action>(item);
    Var in;
    if (stage > 0) in = transfers_.take(Transfer::Payload::activation, stage - 1, microbatch);
    out = model_.forward(ctx, {.ids = stage == 0 ? own_tokens(ids, sequences).to(model_.device()) : Tensor(),
                               .residual = in,
                               .sequences = sequences,
                               .state = state,
                               .chunk = chunk_of(stage)});
    if (stage < plan_.pipeline.last_stage())
      transfers_.give(Transfer::Payload::activation, stage, microbatch, std::exchange(out, {}).value());
  }
  return out;
}

Tensor ParallelModel::logits(const Var& hidden, const std::vector<std::int64_t>& rows,
                             const Sequences& sequences) {
  const std::int64_t count = std::ssize(rows), vocabulary = model_.config().vocab_size;
  const Tensor all = Tensor::empty({count, vocabulary}, accumulate_dtype(model_.dtype()), model_.device());
  if (hidden.defined()) {
    const ContextParallel::Whole whole(installed_->context.get());
    Context ctx;
    const Tensor states =
        apply(*model_.transform_points().at(head_name() / "input").transform, ctx, hidden, sequences).value();
    const Tensor chosen = Tensor::empty({count, states.cols()}, states.dtype(), states.device());
    for (std::int64_t i = 0; i < count; ++i)
      chosen.narrow(0, i, 1).copy_from(states.narrow(0, rows[static_cast<std::size_t>(i)], 1));
    installed_->tensor->gather_vocabulary(all, model_.logits(chosen));
  }
  pipeline().broadcast(all, static_cast<int>(plan_.pipeline.rank_of_stage.back()));
  return all;
}

}  // namespace nemocube

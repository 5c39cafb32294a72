#include "train/step/train_step.h"

#include <algorithm>
#include <memory>

#include "core/add.h"
#include "ops/global_norm/global_norm.h"
#include "ops/router/router.h"
#include "parallel/schedule/actions.h"

namespace nemocube {
namespace {

/// One microbatch between the start of its forward and the end of its backward pass.
struct Microbatch {
  Tape tape;
  BlockRecords records;
  Var hidden;
};

/// What a step adds up and decides, on the device of the model. The host reads it once, when the step ends.
struct StepTensors {
  Tensor sums;    // [1 + 4 L] f64 over the microbatches: the loss, the router losses of each of L MoE layers
  Tensor counts;  // [L, E] i64: tokens sent to each expert
  Tensor decision;  // [3] f64: see clip_decision
  Tensor finite;    // [parameters] f64: see UpdateGate

  explicit StepTensors(const NemotronH& model)
      : sums(Tensor::zeros({1 + std::ssize(model.moe_layers()) * std::ssize(router_losses)}, DType::f64,
                           model.device())),
        counts(Tensor::zeros({std::ssize(model.moe_layers()), model.config().n_routed_experts}, DType::i64,
                             model.device())),
        finite(Tensor::empty({std::ssize(model.parameters().all())}, DType::f64, model.device())) {
    finite.fill(1);
  }
  Tensor loss() const { return sums.narrow(0, 0, 1); }
  Tensor losses_of(std::int64_t moe_layer) const {
    constexpr std::int64_t kinds = std::ssize(router_losses);
    return sums.narrow(0, 1 + moe_layer * kinds, kinds);
  }
  UpdateGate gate() const { return {decision.narrow(0, 1, 1), decision.narrow(0, 2, 1), finite}; }
};

/// StepTensors on the host.
struct StepValues {
  std::vector<double> sums, decision, finite;
  Tensor counts;
};

/// The one place in a step where the host waits for the device.
StepValues fetch(const StepTensors& t) {
  const Tensor counts = Tensor::empty(t.counts.shape(), t.counts.dtype(), Device::cpu);
  counts.copy_from(t.counts);
  return {t.sums.to_vector(), t.decision.to_vector(), t.finite.to_vector(), counts};
}

/// Of all ranks.
struct BatchTotals {
  std::int64_t labels = 0;
  double microbatches = 0;  // that have tokens
};

BatchTotals count_batches(std::span<const TokenBatch> microbatches, DataParallel* parallel) {
  std::int64_t labels = 0, filled = 0;
  for (const TokenBatch& batch : microbatches) {
    labels += batch.label_tokens;
    filled += batch.ids.numel() > 0;
  }
  if (parallel) {
    const Tensor counts = Tensor::from<std::int64_t>({labels, filled}, {2});
    parallel->group().all_reduce(counts);
    labels = counts.data<std::int64_t>()[0];
    filled = counts.data<std::int64_t>()[1];
  }
  return {labels, static_cast<double>(filled)};
}

/// One optimizer step in progress.
class Step {
 public:
  Step(NemotronH& model, std::span<const TokenBatch> microbatches, const StepOptions& options,
       const BatchTotals& totals)
      : model_(model),
        batches_(microbatches),
        options_(options),
        scale_(1.0 / static_cast<double>(totals.labels)),
        live_(microbatches.size()),
        tensors_(model) {
    // Auxiliary losses contribute their gradients in the backward pass. Their weight relative to the token mean
    // must not depend on how the batch is cut into microbatches.
    for (MoeMixer* moe : model.moe_layers()) {
      moe->reset_totals();
      moe->router().aux_grad_scale = 1.0 / totals.microbatches;
      if (options.parallel)
        moe->sum_totals_over_devices([p = options.parallel](const Tensor& t) { p->group().all_reduce(t); });
    }
  }

  StepTensors run(const std::vector<Action>& actions) {
    for (const Action& action : actions)
      action.kind == Action::Kind::forward ? forward(action.microbatch) : backward(action.microbatch);
    return std::move(tensors_);
  }

 private:
  Context context(Microbatch& m) const { return {.tape = &m.tape, .kernels = options_.kernels}; }

  void forward(std::size_t index) {
    live_[index] = std::make_unique<Microbatch>();
    Microbatch& m = *live_[index];
    Context ctx = context(m);
    m.records = model_.make_records();
    m.hidden = model_.forward(ctx, {.ids = batches_[index].ids,
                                    .residual = {},
                                    .sequences = batches_[index].sequences,
                                    .records = &m.records});
  }

  void backward(std::size_t index) {
    Microbatch& m = *live_[index];
    Context ctx = context(m);
    const Var loss = model_.loss(ctx, std::exchange(m.hidden, {}), batches_[index].labels, batches_[index].sequences, scale_);
    add_elements(tensors_.loss(), tensors_.loss(), loss.value().reshape({1}));
    if (options_.parallel) options_.parallel->begin_microbatch(index + 1 == batches_.size());
    m.tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), loss.value().device()));
    add_records(m);
    live_[index].reset();
  }

  void add_records(const Microbatch& m) {
    std::int64_t layer = 0;
    for (const MoeRecord* record : moe_records(m.records)) {
      const Tensor sum = tensors_.losses_of(layer);
      add_elements(sum, sum, record->losses);
      add_counts(tensors_.counts.select(layer), record->counts);
      ++layer;
    }
  }

  NemotronH& model_;
  std::span<const TokenBatch> batches_;
  const StepOptions& options_;
  double scale_;
  std::vector<std::unique_ptr<Microbatch>> live_;
  StepTensors tensors_;
};

/// In the order of the ranks.
void sum_over_ranks(const StepTensors& t, Communicator& group) {
  group.all_reduce(t.sums);
  if (t.counts.numel() > 0) group.all_reduce(t.counts);
}

/// Weights, then router biases, unless the decision is to skip the step.
void update(NemotronH& model, Optimizer& optimizer, const StepOptions& options, const StepTensors& t) {
  optimizer.step(options.lr, options.weight_decay, t.gate());
  if (options.expert_bias_rate <= 0) return;
  std::int64_t layer = 0;
  for (const MoeMixer* moe : model.moe_layers()) {
    const Parameter& bias = moe->correction_bias();
    UpdateGate gate = t.gate();
    gate.finite = t.finite.narrow(0, &bias - model.parameters().all().data(), 1);
    update_expert_bias(bias.value, t.counts.select(layer++), options.expert_bias_rate, gate);
  }
}

/// See StepResult.
std::vector<std::pair<std::string, double>> auxiliary_losses(const NemotronH& model, const StepValues& values,
                                                             double microbatches) {
  std::vector<std::pair<std::string, double>> losses;
  for (std::size_t kind = 0; kind < router_losses.size(); ++kind) {
    bool on = false;
    double sum = 0;
    for (std::size_t i = 0; i < model.moe_layers().size(); ++i) {
      on = on || model.moe_layers()[i]->router().*router_losses[kind].coef != 0;
      sum += values.sums[1 + i * router_losses.size() + kind];
    }
    if (on) losses.emplace_back(router_losses[kind].name, sum / microbatches);
  }
  return losses;
}

StepResult result_of(const NemotronH& model, const StepValues& values, const BatchTotals& totals) {
  StepResult result;
  result.label_tokens = totals.labels;
  result.loss = values.sums[0] * (1.0 / static_cast<double>(totals.labels));
  result.grad_norm = values.decision[0];
  if (values.decision[2] == 0) result.outcome = StepOutcome::non_finite;
  if (const auto lost = std::ranges::find(values.finite, 0.0); lost != values.finite.end())
    result.not_finite = model.parameters().all()[static_cast<std::size_t>(lost - values.finite.begin())].name;
  result.auxiliary_losses = auxiliary_losses(model, values, totals.microbatches);
  for (std::int64_t i = 0; i < values.counts.dim(0); ++i)
    result.expert_counts.push_back(values.counts.select(i));
  return result;
}

}  // namespace

StepResult train_step(NemotronH& model, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                      const StepOptions& options) {
  DataParallel* parallel = options.parallel;
  const BatchTotals totals = count_batches(microbatches, parallel);
  model.parameters().clear_gradients();
  if (totals.labels == 0) {
    StepResult nothing;
    nothing.outcome = StepOutcome::no_labels;
    return nothing;
  }
  if (parallel) parallel->begin_step();
  StepTensors tensors =
      Step(model, microbatches, options, totals).run(sequential_actions(microbatches.size()));
  if (parallel) {
    parallel->finish_gradients();
    sum_over_ranks(tensors, parallel->group());
  }
  const std::vector<Tensor> gradients = optimizer.gradients();
  const Tensor square_sum =
      parallel ? parallel->square_sum_of_gradients(gradients) : sum_of_squares(gradients, model.device());
  tensors.decision = clip_decision(square_sum, tensors.loss(), options.max_norm);
  update(model, optimizer, options, tensors);
  if (parallel) {
    parallel->group().all_reduce(tensors.finite, Reduction::min);
    parallel->finish_update();
  }
  model.parameters().clear_gradients();
  const StepResult result = result_of(model, fetch(tensors), totals);
  if (result.outcome == StepOutcome::updated) optimizer.count_step();
  return result;
}

LossSum evaluate_loss(NemotronH& model, const TokenBatch& batch, const KernelChoice* kernels) {
  Context ctx;
  ctx.kernels = kernels;
  const Var hidden = model.hidden(ctx, batch.ids, batch.sequences);
  const Var loss = model.loss(ctx, hidden, batch.labels, batch.sequences, 1);
  return {loss.value().to_vector()[0], batch.label_tokens};
}

}  // namespace nemocube

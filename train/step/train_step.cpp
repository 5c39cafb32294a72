#include "train/step/train_step.h"

#include <algorithm>
#include <array>

#include "core/add.h"
#include "core/trace.h"
#include "ops/global_norm/global_norm.h"
#include "ops/router/router.h"
#include "train/step/step_runner.h"

namespace nemocube {
namespace {

/// Of all ranks.
struct BatchTotals {
  std::int64_t labels = 0, noised = 0;
  double microbatches = 0;   // that have tokens
  bool fixed_sizes = false;  // all microbatches have a capacity
  double loss_scale() const { return 1.0 / static_cast<double>(labels); }
  /// With loss_scale() it divides by the number of noised tokens.
  double noised_factor() const {
    return static_cast<double>(labels) / static_cast<double>(std::max<std::int64_t>(noised, 1));
  }
};

BatchTotals count_batches(std::span<const TokenBatch> microbatches, Communicator& replicas) {
  std::array<std::int64_t, 4> counts{};
  for (const TokenBatch& batch : microbatches) {
    counts[0] += batch.label_tokens;
    counts[1] += batch.sequences.token_count() > 0;
    counts[2] += !batch.sequences.has_spare_rows();
    counts[3] += batch.noised_tokens;
  }
  replicas.host_all_reduce(std::span<std::int64_t>(counts));
  return {counts[0], counts[3], static_cast<double>(counts[1]), counts[2] == 0};
}

/// The auxiliary losses contribute their gradients in the backward pass. Their weight relative to the token
/// mean must not depend on how the batch is cut into microbatches.
void begin_router_losses(Stack& model, const BatchTotals& totals) {
  for (MoeMixer* moe : model.moe_layers()) {
    moe->reset_totals();
    moe->router().aux_grad_scale = 1.0 / totals.microbatches;
  }
}

/// Weights, then router biases, unless the decision is to skip the step.
void update_weights(Stack& model, Optimizer& optimizer, const StepOptions& options, const StepTensors& t) {
  optimizer.step(t.gate());
  if (options.expert_bias_rate <= 0) return;
  const std::vector<std::int64_t> numbers = moe_layer_numbers(model);
  auto layer = numbers.begin();
  for (const MoeMixer* moe : model.moe_layers()) {
    const std::int64_t number = *layer++;
    const Parameter* const bias = moe->correction_bias();
    if (!bias) continue;
    UpdateGate gate = t.gate();
    gate.finite = t.finite.narrow(0, bias->number, 1);
    update_expert_bias(bias->value, t.counts.select(number).narrow(0, 0, bias->value.numel()),
                       options.expert_bias_rate, gate);
  }
}

/// From the gradients to the weights that all ranks have.
void update(ParallelModel& parallel, Optimizer& optimizer, const StepOptions& options, const StepTensors& t) {
  using trace::Category;
  const trace::Span span(Category::optimizer, "update");
  {
    const trace::Span norm(Category::optimizer, "gradient norm");
    t.decision.copy_from(
        clip_decision(parallel.data().square_sum_of_gradients(), t.loss(), options.max_norm));
  }
  {
    const trace::Span weights(Category::optimizer, "weights");
    update_weights(parallel.model(), optimizer, options, t);
  }
  parallel.all().all_reduce(t.finite, Reduction::min);
  const trace::Span spread(Category::optimizer, "weights of other ranks");
  parallel.data().finish_update();
}

/// See StepResult.
std::vector<std::pair<std::string, double>> auxiliary_losses(std::span<const double> sums,
                                                             double microbatches) {
  std::vector<std::pair<std::string, double>> losses;
  constexpr std::size_t kinds = router_losses.size();
  const std::size_t end = sums.size() - kinds;  // the numbers of layers
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    if (sums[end + kind] == 0) continue;
    double sum = 0;
    for (std::size_t i = 1 + kind; i < end; i += kinds) sum += sums[i];
    losses.emplace_back(router_losses[kind].name, sum / microbatches);
  }
  return losses;
}

/// From tensors in host memory.
StepResult result_of(const Stack& model, const StepTensors& tensors, const BatchTotals& totals) {
  const std::vector<double> sums = tensors.sums.to_vector(), decision = tensors.decision.to_vector(),
                            finite = tensors.finite.to_vector();
  StepResult result;
  result.label_tokens = totals.labels;
  result.loss = sums[0] * totals.loss_scale();
  result.grad_norm = decision[0];
  if (decision[2] == 0) result.outcome = StepOutcome::non_finite;
  if (const auto lost = std::ranges::find(finite, 0.0); lost != finite.end())
    result.not_finite = tensor_specs(model.setup())[static_cast<std::size_t>(lost - finite.begin())].name;
  const std::size_t before_depths = sums.size() - static_cast<std::size_t>(tensors.depths());
  for (std::size_t i = before_depths; i < sums.size(); ++i)
    result.mtp_losses.push_back(sums[i] * totals.loss_scale());
  result.auxiliary_losses = auxiliary_losses(std::span(sums).first(before_depths), totals.microbatches);
  const std::vector<std::int64_t> experts = model.setup().expert_counts();
  for (std::int64_t i = 0; i < tensors.counts.dim(0); ++i)
    result.expert_counts.push_back(
        tensors.counts.select(i).narrow(0, 0, experts[static_cast<std::size_t>(i)]));
  return result;
}

/// All work of a step on the device, of which the graphs of `replay` are parts, where it is not null.
void queue_step(ParallelModel& parallel, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                const StepOptions& options, const GradScale& loss_scale, double noised_factor,
                StepReplay* replay, StepTensors& tensors) {
  StepRunner runner(parallel, microbatches, loss_scale, noised_factor, options.kernels, replay);
  const auto passes = [&] {
    parallel.data().begin_step();
    runner.run(parallel.program(std::ssize(microbatches)), tensors);
  };
  const auto updates = [&] { update(parallel, optimizer, options, tensors); };
  const GraphCache::Key of_update{options.max_norm, options.expert_bias_rate};
  if (replay && replay->whole_steps()) {
    GraphCache::Key key = runner.key();
    key.insert(key.end(), of_update.begin(), of_update.end());
    replay->graphs().run(
        "a step", key, [&] { passes(), updates(); }, [&] { runner.abandon(); });
    return;
  }
  passes();
  if (replay)
    replay->graphs().run("the update", of_update, updates);
  else
    updates();
}

}  // namespace

StepResult train_step(ParallelModel& parallel, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                      const StepOptions& options) {
  Stack& model = parallel.model();
  const BatchTotals totals = count_batches(microbatches, parallel.replicas());
  model.parameters().clear_gradients();
  if (totals.labels == 0) {
    StepResult nothing;
    nothing.outcome = StepOutcome::no_labels;
    nothing.mtp_losses.resize(static_cast<std::size_t>(model.choices().mtp.depths));
    return nothing;
  }
  StepReplay* const replay =
      options.replay && options.replay->begin_step(totals.fixed_sizes, totals.loss_scale()) ? options.replay
                                                                                            : nullptr;
  StepTensors tensors = replay ? replay->tensors() : StepTensors(model);
  begin_router_losses(model, totals);
  optimizer.prepare(options.lr, options.weight_decay);
  queue_step(parallel, optimizer, microbatches, options,
             replay ? GradScale(replay->loss_scale()) : GradScale(totals.loss_scale()),
             totals.noised_factor(), replay, tensors);
  model.parameters().clear_gradients();
  const StepResult result = result_of(model, tensors.fetch(), totals);
  if (result.outcome == StepOutcome::updated) optimizer.count_step();
  return result;
}

namespace {

/// The labels of the noised tokens, or of all others.
Tensor labels_of(const TokenBatch& batch, bool noised) {
  if (!batch.noised_weights) return batch.labels;
  std::vector<std::int64_t> labels(batch.labels.data<std::int64_t>(),
                                   batch.labels.data<std::int64_t>() + batch.labels.numel());
  for (std::size_t t = 0; t < labels.size(); ++t)
    if ((batch.noised_weights.data<double>()[t] != 0) != noised) labels[t] = ignored_label;
  return Tensor::from(labels, batch.labels.shape());
}

}  // namespace

EvaluatedTokens evaluate_loss(ParallelModel& parallel, const TokenBatch& batch, const KernelChoice* kernels,
                              const Tensor& sums, Tensor* token_losses) {
  Stack& model = parallel.model();
  Context ctx;
  ctx.kernels = kernels;
  EvaluatedTokens counts;
  if (parallel.first_of_replica()) counts = {batch.label_tokens, batch.noised_tokens};
  const Var hidden = parallel.hidden(ctx, batch.ids, batch.sequences);
  if (!hidden.defined()) return counts;
  const Tensor weights = label_weights(batch, 1);
  for (const bool noised : {false, true}) {
    if (noised && !weights) break;
    const auto own = [&](const Tensor& t) { return parallel.own_tokens(t, batch.sequences); };
    const Labels labels =
        Labels(own(labels_of(batch, noised)), batch.label_capacity, noised ? own(weights) : Tensor())
            .to(model.device());
    const Var loss = model.loss(ctx, hidden, labels, batch.sequences, 1, noised ? nullptr : token_losses);
    const Tensor sum = sums.narrow(0, noised, 1);
    if (parallel.counts_loss()) add_elements(sum, sum, loss.value().reshape({1}));
  }
  return counts;
}

}  // namespace nemocube

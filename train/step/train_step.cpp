#include "train/step/train_step.h"

#include <cmath>
#include <memory>

#include "ops/cross_entropy/cross_entropy.h"
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

/// What a step adds up over its microbatches.
struct StepSums {
  double loss = 0;
  std::vector<MoeRecord> moe;  // of each MoE layer
};

/// Of all ranks.
struct BatchTotals {
  std::int64_t labels = 0;
  double microbatches = 0;  // that have tokens
};

BatchTotals count_batches(std::span<const TokenBatch> microbatches, DataParallel* parallel) {
  std::int64_t labels = 0, filled = 0;
  for (const TokenBatch& batch : microbatches) {
    labels += count_labels(batch.labels);
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
        live_(microbatches.size()) {
    // Auxiliary losses contribute their gradients in the backward pass. Their weight relative to the token mean
    // must not depend on how the batch is cut into microbatches.
    for (MoeMixer* moe : model.moe_layers()) {
      moe->reset_totals();
      moe->router().aux_grad_scale = 1.0 / totals.microbatches;
      if (options.parallel)
        moe->sum_totals_over_devices([p = options.parallel](const Tensor& t) { p->group().all_reduce(t); });
      sums_.moe.emplace_back().counts = Tensor::zeros({moe->router().experts}, DType::i64, Device::cpu);
    }
  }

  StepSums run(const std::vector<Action>& actions) {
    for (const Action& action : actions)
      action.kind == Action::Kind::forward ? forward(action.microbatch) : backward(action.microbatch);
    return std::move(sums_);
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
    const Var loss = model_.loss(ctx, std::exchange(m.hidden, {}), batches_[index].labels, scale_);
    sums_.loss += loss.value().to_vector()[0];
    if (options_.parallel) options_.parallel->begin_microbatch(index + 1 == batches_.size());
    m.tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), loss.value().device()));
    add_records(m);
    live_[index].reset();
  }

  void add_records(const Microbatch& m) {
    const std::vector<MoeRecord*> records = moe_records(m.records);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const MoeRecord& record = *records[i];
      MoeRecord& sum = sums_.moe[i];
      add_counts(sum.counts, record.counts);
      sum.aux_loss += record.aux_loss;
      sum.seq_aux_loss += record.seq_aux_loss;
      sum.global_aux_loss += record.global_aux_loss;
      sum.z_loss += record.z_loss;
    }
  }

  NemotronH& model_;
  std::span<const TokenBatch> batches_;
  const StepOptions& options_;
  double scale_;
  std::vector<std::unique_ptr<Microbatch>> live_;
  StepSums sums_;
};

/// Over all ranks, in their order.
void sum_over_ranks(StepSums& sums, Communicator& group) {
  std::vector<double> values{sums.loss};
  std::vector<std::int64_t> counts;
  for (const MoeRecord& moe : sums.moe) {
    values.insert(values.end(), {moe.aux_loss, moe.seq_aux_loss, moe.global_aux_loss, moe.z_loss});
    const auto* c = moe.counts.data<std::int64_t>();
    counts.insert(counts.end(), c, c + moe.counts.numel());
  }
  const Tensor value_tensor = Tensor::from(values, {std::ssize(values)});
  const Tensor count_tensor = Tensor::from(counts, {std::ssize(counts)});
  group.all_reduce(value_tensor);
  if (!counts.empty()) group.all_reduce(count_tensor);
  const double* value = value_tensor.data<double>();
  sums.loss = *value++;
  std::int64_t first = 0;
  for (MoeRecord& moe : sums.moe) {
    moe.aux_loss = *value++;
    moe.seq_aux_loss = *value++;
    moe.global_aux_loss = *value++;
    moe.z_loss = *value++;
    moe.counts = count_tensor.narrow(0, first, moe.counts.numel());
    first += moe.counts.numel();
  }
}

std::vector<std::pair<std::string, double>> auxiliary_losses(const NemotronH& model, const StepSums& sums,
                                                             double microbatches) {
  struct Kind {
    const char* name;
    double RouterOptions::*coef;
    double MoeRecord::*sum;
  };
  static constexpr Kind kinds[] = {
      {"aux_loss", &RouterOptions::aux_loss_coef, &MoeRecord::aux_loss},
      {"seq_aux_loss", &RouterOptions::seq_aux_loss_coef, &MoeRecord::seq_aux_loss},
      {"global_aux_loss", &RouterOptions::global_aux_loss_coef, &MoeRecord::global_aux_loss},
      {"z_loss", &RouterOptions::z_loss_coef, &MoeRecord::z_loss},
  };
  std::vector<std::pair<std::string, double>> losses;
  for (const Kind& kind : kinds) {
    bool on = false;
    double sum = 0;
    for (std::size_t i = 0; i < sums.moe.size(); ++i) {
      on = on || model.moe_layers()[i]->router().*kind.coef != 0;
      sum += sums.moe[i].*kind.sum;
    }
    if (on) losses.emplace_back(kind.name, sum / microbatches);
  }
  return losses;
}

/// Weights, then router biases. Returns StepResult::not_finite.
std::string update(NemotronH& model, Optimizer& optimizer, const StepOptions& options, const StepSums& sums,
                   double grad_scale) {
  const Parameter* lost = optimizer.step(options.lr, options.weight_decay, grad_scale);
  if (options.expert_bias_rate > 0)
    for (std::size_t i = 0; i < model.moe_layers().size(); ++i) {
      const Parameter& bias = model.moe_layers()[i]->correction_bias();
      if (!update_expert_bias(bias.value, sums.moe[i].counts, options.expert_bias_rate) && !lost)
        lost = &bias;
    }
  const std::vector<Parameter>& all = model.parameters().all();
  std::int64_t first = lost ? lost - all.data() : std::ssize(all);
  if (options.parallel) {
    const Tensor index = Tensor::from<std::int64_t>({first}, {1});
    options.parallel->group().all_reduce(index, Reduction::min);
    first = index.item<std::int64_t>();
  }
  return first < std::ssize(all) ? all[static_cast<std::size_t>(first)].name : "";
}

}  // namespace

StepResult train_step(NemotronH& model, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                      const StepOptions& options) {
  DataParallel* parallel = options.parallel;
  StepResult result;
  const BatchTotals totals = count_batches(microbatches, parallel);
  result.label_tokens = totals.labels;
  model.parameters().clear_gradients();
  if (result.label_tokens == 0) {
    result.outcome = StepOutcome::no_labels;
    return result;
  }
  if (parallel) parallel->begin_step();
  StepSums sums = Step(model, microbatches, options, totals).run(sequential_actions(microbatches.size()));
  if (parallel) {
    parallel->finish_gradients();
    sum_over_ranks(sums, parallel->group());
  }
  result.loss = sums.loss * (1.0 / static_cast<double>(totals.labels));
  result.auxiliary_losses = auxiliary_losses(model, sums, totals.microbatches);
  for (const MoeRecord& sum : sums.moe) result.expert_counts.push_back(sum.counts);
  const std::vector<Tensor> gradients = optimizer.gradients();
  const SquareSum norm = parallel ? parallel->norm_of_gradients(gradients) : sum_of_squares(gradients);
  result.grad_norm = norm.norm();
  if (!norm.finite || !std::isfinite(result.loss))
    result.outcome = StepOutcome::non_finite;
  else
    result.not_finite =
        update(model, optimizer, options, sums, clip_coefficient(norm.norm(), options.max_norm));
  if (parallel) parallel->finish_update(result.outcome == StepOutcome::updated);
  model.parameters().clear_gradients();
  return result;
}

LossSum evaluate_loss(NemotronH& model, const TokenBatch& batch, const KernelChoice* kernels) {
  Context ctx;
  ctx.kernels = kernels;
  const Var hidden = model.hidden(ctx, batch.ids, batch.sequences);
  const Var loss = model.loss(ctx, hidden, batch.labels, 1);
  return {loss.value().to_vector()[0], count_labels(batch.labels)};
}

}  // namespace nemocube

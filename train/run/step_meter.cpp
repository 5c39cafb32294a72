#include "train/run/step_meter.h"

#include <array>
#include <tuple>

#include "core/allocator.h"
#include "train/run/step_flops.h"
#include "train/run/tensorboard.h"

namespace nemocube {

TrainingRecord StepMeter::begin() {
  allocator(run_.loaded.model->device()).reset_peak();
  communicated_ = communication();
  TrainingRecord record;
  record.step = run_.state.step;
  return record;
}

void StepMeter::sum_counts(TrainingRecord& record) const {
  std::array counts{record.positions, record.content_tokens, record.tokens, record.label_tokens,
                    record.samples};
  if (!counts_batches()) counts = {};
  run_.loaded.parallel->sum(counts);
  std::tie(record.positions, record.content_tokens, record.tokens, record.label_tokens, record.samples) =
      std::tuple_cat(counts);
}

void StepMeter::end(const StepResult& result, std::span<const TokenBatch> microbatches,
                    TrainingRecord& record) {
  const Recipe& recipe = run_.recipe;
  const ModelSetup& setup = run_.loaded.model->setup();
  const RunState& state = run_.state;
  record.loss = result.loss;
  record.grad_norm = result.grad_norm;
  record.lr = run_.schedule.lr(run_.schedule_position());
  record.peak_bytes = run_.ranks.largest(allocator(run_.loaded.model->device()).stats().peak_bytes);
  record.ranks = run_.ranks.world().size();
  record.skipped = result.outcome != StepOutcome::updated;
  record.skipped_steps = state.skipped_steps;
  record.mtp_losses = result.mtp_losses;
  record.auxiliary_losses = result.auxiliary_losses;
  if (logs_experts()) record.experts = expert_record(result.expert_counts);
  const auto now = Clock::now();
  record.seconds = std::chrono::duration<double>(now - last_record_).count();
  last_record_ = now;
  record.consumed_samples = state.samples;
  record.mean_auxiliary_losses = mean_auxiliary_losses(recipe.model->moe, setup, result.auxiliary_losses);
  const auto& peak = recipe.mfu.peak_tflops;
  if (counts_flops() && result.outcome != StepOutcome::no_labels)
    record.flops = run_.loaded.parallel->sum(counts_batches() ? step_flops(setup, microbatches) : 0);
  if (peak && record.seconds > 0 && result.outcome != StepOutcome::no_labels)
    record.mfu = record.flops / (record.seconds * *peak * 1e12 * record.ranks) * 100;
  note_communication(*record.times);
}

// Nobody waits for NCCL here: that would slow the step down.
CommStats StepMeter::communication() const {
  return run_.ranks.world().uses_nccl() ? CommStats{} : run_.ranks.total_stats(*run_.loaded.groups);
}

void StepMeter::note_communication(StepTimes& times) const {
  if (!run_.ranks.several() || run_.ranks.world().uses_nccl()) return;
  const CommStats now = communication();
  times.communication = now.seconds - communicated_.seconds;
  times.waiting = now.waiting_seconds - communicated_.waiting_seconds;
}

bool StepMeter::logs_experts() const {
  const DistributedSection& d = run_.recipe.distributed;
  return run_.recipe.moe_metrics.enabled.value_or(d.ep_size * d.expert_tp_size > 1);
}

bool StepMeter::counts_flops() const {
  const auto& tensorboard = run_.recipe.tensorboard;
  return run_.recipe.mfu.peak_tflops || (tensorboard && tensorboard->log_throughput);
}

// The ranks of a replica get the same batches, which count once.
bool StepMeter::counts_batches() const { return run_.loaded.parallel->first_of_replica(); }

}  // namespace nemocube

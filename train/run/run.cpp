#include "train/run/run.h"

#include <chrono>
#include <filesystem>

#include "core/log.h"
#include "core/profile.h"
#include "core/trace.h"
#include "train/assemble/run_batches.h"
#include "train/cost/memory_report.h"
#include "train/logging/progress.h"
#include "train/ranks/inputs.h"
#include "train/recipe/files.h"
#include "train/run/run_output.h"
#include "train/run/start_times.h"
#include "train/run/started_run.h"
#include "train/run/step_meter.h"
#include "train/run/stop_signals.h"
#include "train/run/validation_steps.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

using Clock = std::chrono::steady_clock;

ProgressStep progress_of(const TrainingRecord& record, std::int64_t total) {
  return {.step = record.step,
          .total = total,
          .epoch = record.epoch,
          .loss = record.loss,
          .lr = record.lr,
          .grad_norm = *record.grad_norm,
          .tokens = record.tokens,
          .skipped = record.skipped,
          .imbalance = record.experts.worst(),
          .mtp_losses = record.mtp_losses};
}

/// One run: its loop, from the first step to the last.
class Run {
 public:
  Run(const Recipe& recipe, const ModelConfig& config, const ParallelSettings& settings, World& world,
      Device device, const std::optional<StepRange>& profile)
      : run_(recipe, config, settings, world, device),
        output_(run_, profile),
        validations_(run_, output_.log()),
        meter_(run_),
        signals_(run_.recipe, run_.ranks),
        saved_steps_(run_.state.step) {
    result_.first_step = run_.state.step;
    result_.total_steps = run_.steps.total_steps;
    if (run_.from) result_.checkpoint = *run_.from;
  }

  RunResult train() {
    const RunState& state = run_.state;
    const std::int64_t total = run_.steps.total_steps;
    validations_.count_known();
    output_.begin(validations_.end_by_early_stopping());
    signals_.announce();
    const Validation::Stop stop = signals_.stop();
    prune_after_kill();
    bool complete = validations_.make_up(stop);
    bool stopped = signals_.asked();
    StepProgress progress;
    meter_.restart_clock();
    while (state.step < total && !stopped && !validations_.stops_early()) {
      const std::int64_t step = state.step;
      signals_.set_second_text(second_signal_text(true));
      if (output_.before_step(step)) meter_.restart_clock();
      const TrainingRecord record = step == result_.first_step ? first_step() : one_step();
      progress.step(progress_of(record, total));
      stop_when_hopeless();
      note_published();
      stopped = signals_.asked();
      const bool validates = validations_.is_due(step, stopped);
      if (stopped && validations_.is_due(step)) complete = false;
      const bool saves = saves_after(step, stopped);
      if (!saves && !validates) continue;
      // Save before validating: if a long validation is interrupted, the step is not lost.
      std::filesystem::path saved;
      if (saves) saved = save();
      signals_.set_second_text(second_signal_text(false));
      if (validates) {
        const Losses losses = validations_.run(stop);
        complete = validations_.is_complete(losses);
        stopped = signals_.asked();
        if (!saves &&
            (saves_after(step, stopped) || (validations_.stops_early() && run_.recipe.checkpoint.enabled)))
          saved = save();
        if (!saved.empty() && !losses.empty()) run_.checkpoints.note_losses(saved, losses);
      }
      meter_.restart_clock();  // rates are those of training alone
    }
    output_.finish_profile();
    run_.checkpoints.finish();
    note_published();
    result_.steps_done = state.step;
    result_.skipped_steps = state.skipped_steps;
    if (state.step < total) result_.early_stopping = validations_.end_by_early_stopping();
    const bool finished = (state.step >= total || !result_.early_stopping.empty()) && complete;
    if (stopped && !finished) result_.signal = signals_.agreed();
    output_.end(result_);
    return result_;
  }

 private:
  // Composed whenever it changes, because a signal handler cannot format. `running`: a step is under way.
  std::string second_signal_text(bool running) const {
    const std::int64_t last = running ? run_.state.step : run_.state.step - 1;
    return cat("stopped at once: ",
               last < saved_steps_    ? "no step is lost"
               : last == saved_steps_ ? cat("step ", last, " is lost")
                                      : cat("steps ", saved_steps_, " to ", last, " are lost"),
               result_.checkpoint.empty() ? "; there is no checkpoint"
                                          : cat("; the newest checkpoint is ", result_.checkpoint.string()));
  }

  void prune_after_kill() const {
    if (!run_.recipe.checkpoint.enabled) return;
    const StorageTime longer(run_.ranks.world(), run_.most_checkpoint_bytes());  // rank 0 alone removes files
    run_.checkpoints.prune();
  }

  bool saves_after(std::int64_t step, bool stopped) const {
    return run_.recipe.checkpoint.enabled && is_checkpoint_step(run_.steps, step, stopped);
  }

  std::filesystem::path save() {
    const trace::Span span(trace::Category::checkpoint, "checkpoint", {{"step", run_.state.step - 1}});
    // Rank 0 alone publishes and prunes.
    const StorageTime longer(run_.ranks.world(), run_.most_checkpoint_bytes());
    if (run_.lock) run_.lock->renew_if_lost();
    std::filesystem::path saved = run_.checkpoints.save(run_.loaded, run_.optimizer, run_.state);
    note_published();
    return saved;
  }

  // Checkpoints that have become complete since the last call.
  void note_published() {
    for (const Checkpoints::Published& published : run_.checkpoints.take_published()) {
      result_.checkpoint = published.path;
      saved_steps_ = published.steps;
      output_.published(published);
    }
  }

  TrainingRecord first_step() {
    TrainingRecord record;
    {
      static Zone zone("start/first step", false);
      const ZoneTimer timer(zone);
      record = one_step();
    }
    const std::string text = start_text(run_.ranks.world_group());
    if (run_.ranks.first()) log_info(text);
    return record;
  }

  TrainingRecord one_step() {
    const trace::Span span(trace::Category::step, "step", {{"step", run_.state.step}});
    TrainingRecord record = meter_.begin();
    const std::vector<TokenBatch> microbatches = next_microbatches(record);
    meter_.sum_counts(record);
    const StepResult result =
        train_step(*run_.loaded.parallel, run_.optimizer, microbatches, options_of_step());
    advance(result, record.samples);
    meter_.end(result, microbatches, record);
    if (!result_.first_loss) result_.first_loss = result.loss;
    result_.last_loss = result.loss;
    result_.tokens += record.tokens;
    result_.seconds += record.seconds;
    if (run_.lock) run_.lock->renew_if_lost();
    output_.after_step(record);
    if (!result.not_finite.empty()) fail_not_finite(result.not_finite);
    return record;
  }

  std::vector<TokenBatch> next_microbatches(TrainingRecord& record) {
    const trace::Span span(trace::Category::data, "load batches");
    Loader& loader = run_.loader;
    if (loader.epoch_done()) loader.start_epoch(loader.epoch() + 1);
    const auto begin = Clock::now();
    record.epoch = loader.epoch();
    const std::vector<Batch> batches = loader.next_group(run_.steps.microbatches);
    for (const Batch& batch : batches) {
      record.positions += batch.positions;
      record.content_tokens += batch.content_tokens;
      record.tokens += batch.tail_trimmed_tokens;
      record.label_tokens += batch.label_tokens;
      record.samples += batch.samples;
    }
    std::vector<TokenBatch> microbatches = batches_of_step(run_.recipe, run_.corruption, batches);
    if (run_.replay)
      for (TokenBatch& tokens : microbatches) tokens = run_.capacity.fit(std::move(tokens));
    record.times = StepTimes{.data = std::chrono::duration<double>(Clock::now() - begin).count()};
    return microbatches;
  }

  StepOptions options_of_step() {
    const std::int64_t n = run_.schedule_position();
    StepOptions options;
    options.lr = run_.schedule.lr(n);
    options.weight_decay = run_.schedule.weight_decay(n);
    options.max_norm = run_.recipe.clip_grad_norm.max_norm;
    options.expert_bias_rate = run_.recipe.model->moe.expert_bias_update_rate;
    options.kernels = &run_.recipe.kernels;
    options.replay = run_.replay ? &*run_.replay : nullptr;
    return options;
  }

  // The state after a step of so many rows.
  void advance(const StepResult& result, std::int64_t samples) {
    RunState& state = run_.state;
    const bool updated = result.outcome == StepOutcome::updated;
    ++state.step;
    output_.set_steps_done(state.step);
    state.scheduler_steps += updated;
    state.optimizer_steps = run_.optimizer.steps();
    state.samples += samples;
    state.skipped_steps += !updated;
    state.nonfinite_in_a_row = result.outcome == StepOutcome::non_finite ? state.nonfinite_in_a_row + 1 : 0;
    state.loader = run_.loader.state();
  }

  [[noreturn]] void fail_not_finite(const std::string& tensor) const {
    fail("step ", run_.state.step - 1, ": the update wrote numbers that are not finite into '", tensor,
         "' (the weights or what the optimizer keeps for them), so the model is lost and not saved; ",
         result_.checkpoint.empty() ? "there is no checkpoint to go back to"
                                    : cat("the last good checkpoint, with ", counted(saved_steps_, "step"),
                                          " done, is ", result_.checkpoint.string()),
         ". Lower optimizer.lr, or look at optimizer.eps, weight decay and gradient clipping");
  }

  void stop_when_hopeless() const {
    const std::int64_t most = run_.recipe.step_scheduler.max_nonfinite_steps;
    if (most == 0 || run_.state.nonfinite_in_a_row < most) return;
    fail("step ", run_.state.step - 1, ": loss or gradient norm was not finite in ", counted(most, "step"),
         " in a row (step_scheduler.max_nonfinite_steps); no weight changed in them. Lower optimizer.lr or "
         "look at the data");
  }

  StartedRun run_;
  RunOutput output_;
  ValidationSteps validations_;
  StepMeter meter_;
  StopSignals signals_;
  RunResult result_;
  std::int64_t saved_steps_;  // steps done in result_.checkpoint
};

}  // namespace

RunResult run_training(const Recipe& recipe, const ParallelSettings& settings, World& world, Device device,
                       const std::optional<StepRange>& profile) {
  check_kernel_choice(recipe.kernels, device);
  want_same_inputs(world, recipe, RecipeUse::train);  // before the ranks form groups
  const ModelConfig config = config_of_model(recipe);
  try {
    return Run(recipe, config, settings, world, device, profile).train();
  } catch (const OutOfMemory& e) {
    const std::string need = explain_memory(recipe, config, world.size(), device);
    throw OutOfMemory(cat(e.what(), need.empty() ? "" : "; ", need));
  }
}

}  // namespace nemocube

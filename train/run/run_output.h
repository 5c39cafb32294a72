#pragma once
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint.h"
#include "train/logging/records.h"
#include "train/logging/run_history.h"
#include "train/logging/run_log.h"
#include "train/profile/step_profile.h"
#include "train/run/run_summary.h"
#include "train/run/started_run.h"

namespace nemocube {

/// The output of a run: the sentences before its first step, the lines of its logs and of history.jsonl, and
/// the profile. All ranks call each function together.
class RunOutput {
 public:
  /// `run` outlives this object. `profile`: steps of which a trace is written. Throws Error like RunLog.
  RunOutput(const StartedRun& run, const std::optional<StepRange>& profile);

  /// Null on all ranks but the first.
  RunLog* log() { return log_ ? &*log_ : nullptr; }

  /// To be called once, before the first step: prints model, data and device of the training,
  /// and begins the history. `early_stopping`: why there is nothing to train any more, or
  /// empty. Throws Error like RunHistory::start().
  void begin(const std::string& early_stopping);
  /// To be called between two steps, before step `step`. Returns whether this took time that does not count
  /// as training (StepProfile::before_step()).
  bool before_step(std::int64_t step);
  /// How many steps are done, for the history.
  void set_steps_done(std::int64_t steps);
  /// To be called after each step. Throws Error where the log cannot be written.
  void after_step(const TrainingRecord& record);
  /// To be called for each checkpoint that has become complete. Throws Error like RunLog::keep_branch().
  void published(const Checkpoints::Published& checkpoint);
  /// To be called after the last step: writes the profile so far.
  void finish_profile();
  /// The last line of the history.
  void end(const RunResult& result);

 private:
  void start_history();
  void tell_adapters() const;
  void tell_choices() const;
  std::int64_t trainable_parameters() const;

  const StartedRun& run_;
  std::optional<RunLog> log_;          // on rank 0
  std::optional<RunHistory> history_;  // where there are steps to train
  std::optional<StepProfile> profile_;
};

}  // namespace nemocube

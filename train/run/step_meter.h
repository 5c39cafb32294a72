#pragma once
#include <chrono>
#include <span>

#include "data/loader/batch.h"
#include "parallel/comm/communicator.h"
#include "train/logging/records.h"
#include "train/run/started_run.h"
#include "train/step/train_step.h"

namespace nemocube {

/// Measures the steps of a run for their records in the log. In each step all ranks call begin(),
/// sum_counts() and end() together, in this order.
class StepMeter {
 public:
  /// `run` outlives this object.
  explicit StepMeter(const StartedRun& run) : run_(run) {}

  /// The time until now does not count as training. To be called before the first step, too.
  void restart_clock() { last_record_ = Clock::now(); }
  /// Before the rows of the step are there. Returns its record, without anything but its number.
  TrainingRecord begin();
  /// Sums this rank's counts of rows and tokens to those of the whole step.
  void sum_counts(TrainingRecord& record) const;
  /// Completes the record, after the step is done and counted in the state of the run.
  void end(const StepResult& result, std::span<const TokenBatch> microbatches, TrainingRecord& record);

 private:
  using Clock = std::chrono::steady_clock;
  CommStats communication() const;
  void note_communication(StepTimes& times) const;
  bool logs_experts() const;
  bool counts_flops() const;
  bool counts_batches() const;

  const StartedRun& run_;
  Clock::time_point last_record_;
  CommStats communicated_;  // before the step
};

}  // namespace nemocube

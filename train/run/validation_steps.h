#pragma once
#include <string>

#include "train/run/started_run.h"
#include "train/run/validation.h"

namespace nemocube {

/// The validations of a run: the steps after which they come, the validations of an earlier process, and the
/// end of the run by their losses. All ranks call each function together, and get the same result.
class ValidationSteps {
 public:
  /// Both outlive this object. `log`: null on all ranks but the first.
  ValidationSteps(StartedRun& run, RunLog* log) : run_(run), log_(log) {}

  /// Before the first step: counts the validation after the last step of an earlier process for early
  /// stopping, if the checkpoint or the logs have the loss of each set.
  void count_known();
  /// After count_known(): validates after the last step of an earlier process, where that was due and is not
  /// known. False when a signal ended this validation, too.
  bool make_up(const Validation::Stop& stop);

  /// Whether to validate after `step`. `preempted`: a signal asked the run to end after this step.
  bool is_due(std::int64_t step, bool preempted = false) const;
  /// Validates after the last step done, and counts the losses for early stopping. Returns the losses as
  /// Validation::run() does, `known` included.
  Losses run(const Validation::Stop& stop, const Losses& known = {});
  /// Whether `losses` has all sets.
  bool is_complete(const Losses& losses) const { return losses.size() == run_.validation.sets(); }

  /// Whether early stopping ends the run.
  bool stops_early() const;
  /// Why early stopping ends the run (reason_of_end()); empty where the run goes on.
  std::string end_by_early_stopping() const;

 private:
  void count(std::int64_t step, const Losses& losses);
  Losses known_losses(std::int64_t step) const;

  StartedRun& run_;
  RunLog* log_;
};

}  // namespace nemocube

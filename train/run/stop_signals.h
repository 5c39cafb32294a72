#pragma once
#include <string>

#include "parallel/comm/job/launch.h"
#include "train/ranks/run_ranks.h"
#include "train/recipe/recipe.h"
#include "train/run/signals.h"
#include "train/run/validation.h"

namespace nemocube {

/// The signals that end a run after the current step: a signal that one rank has received counts for all
/// ranks, so that all stop after the same step.
class StopSignals {
 public:
  /// Watches the signals from now on. `ranks` outlives this object. Throws Error like read_launch().
  StopSignals(const Recipe& recipe, const RunRanks& ranks);

  /// Logs how to ask all ranks for a checkpoint and an end, if a launcher kills them (Launch::stop_command).
  void announce() const;
  /// Whether a signal asks the run to stop. All ranks call together and get the same result.
  bool asked();
  /// The signal by which asked() became true, or 0.
  int agreed() const { return agreed_; }
  /// For validations. To be polled only while this object lives.
  Validation::Stop stop();
  /// The text of a second signal on rank 0, before it ends the process (SignalWatch::set_second_text()).
  void set_second_text(const std::string& text);

 private:
  const RunRanks& ranks_;
  const Launch launch_ = read_launch();
  SignalWatch watch_;
  int agreed_ = 0;
};

}  // namespace nemocube

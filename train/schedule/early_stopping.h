#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "train/recipe/recipe.h"

/// The end of a run whose validation loss does not fall any more, like EarlyStopping of PyTorch Lightning and
/// EarlyStoppingCallback of transformers. All functions are pure.
namespace nemocube {

/// Results of a run's validations so far. Part of the run's state, so that a resumed run goes on counting.
struct EarlyStoppingState {
  std::string metric;  ///< the validation set that was looked at
  /// The lowest loss that was lower than the best one before by more than min_delta,
  /// and its step; absent: no loss was finite.
  std::optional<double> best_loss;
  std::int64_t best_step = 0;  ///< pre: best_loss
  std::int64_t waited = 0;     ///< validations since then
  std::int64_t last_step = 0;  ///< of the last validation that was counted
  friend bool operator==(const EarlyStoppingState&, const EarlyStoppingState&) = default;
};

/// The state after the validation of `step`, whose loss improves on the best one if it is finite and lower by
/// more than min_delta, or if it is the first finite one. A step that was counted before changes nothing.
/// Where `state` looked at another metric, counting begins anew.
EarlyStoppingState counted_validation(std::optional<EarlyStoppingState> state,
                                      const EarlyStoppingSection& section, std::int64_t step, double loss);

/// Whether a run that has come to this state has ended: the last `patience` validations, or more, did not
/// improve.
bool has_ended(const std::optional<EarlyStoppingState>& state, const EarlyStoppingSection& section);

/// Why the run has ended: "the validation loss of 3 validations in a row was not below 2.31, that of step 5,
/// by more than 0.01". A set other than `default` is named, a min_delta of 0 is not. Without any finite loss
/// the text says "was not finite". pre: has_ended()
std::string reason_of_end(const EarlyStoppingState& state, const EarlyStoppingSection& section);

}  // namespace nemocube

#include "train/schedule/early_stopping.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace nemocube {

EarlyStoppingState counted_validation(std::optional<EarlyStoppingState> state,
                                      const EarlyStoppingSection& section, std::int64_t step, double loss) {
  const bool begins = !state || state->metric != section.metric;
  EarlyStoppingState now;
  if (!begins) now = *std::move(state);
  now.metric = section.metric;
  if (!begins && step <= now.last_step) return now;
  now.last_step = step;
  if (std::isfinite(loss) && (!now.best_loss || loss < *now.best_loss - section.min_delta)) {
    now.best_loss = loss;
    now.best_step = step;
    now.waited = 0;
  } else {
    ++now.waited;
  }
  return now;
}

bool has_ended(const std::optional<EarlyStoppingState>& state, const EarlyStoppingSection& section) {
  return state && state->metric == section.metric && state->waited >= section.patience.value();
}

std::string reason_of_end(const EarlyStoppingState& state, const EarlyStoppingSection& section) {
  const std::string set = state.metric == "default" ? "" : cat(" of ", state.metric),
                    first = cat("the validation loss", set, " of ", counted(state.waited, "validation"),
                                state.waited > 1 ? " in a row" : "");
  if (!state.best_loss) return first + " was not finite";
  return cat(first, " was not below ", *state.best_loss, ", that of step ", state.best_step,
             section.min_delta > 0 ? cat(", by more than ", section.min_delta) : "");
}

}  // namespace nemocube
